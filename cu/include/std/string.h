// Stands in for the host's <string.h>: NVRTC has memcpy and memset built in.
#pragma once
