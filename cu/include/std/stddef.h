// Stands in for the host's <stddef.h>: NVRTC has size_t built in.
#pragma once

using ptrdiff_t = decltype((char*)0 - (char*)0);
