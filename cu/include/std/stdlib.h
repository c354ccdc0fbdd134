// Stands in for the host's <stdlib.h>: NVRTC has malloc and free built in.
#pragma once
