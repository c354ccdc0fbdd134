// Stands in for the host's <assert.h>: NVRTC has assert built in.
#pragma once
