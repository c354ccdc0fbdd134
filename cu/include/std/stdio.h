// Stands in for the host's <stdio.h>: NVRTC has printf built in.
#pragma once
