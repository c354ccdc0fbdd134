// A kernel that does nothing, with the arguments of one that would
//
// /// kernel
// entry   = "nothing"
// problem = "none"
// block   = 1
// tile    = ["1"]
// ///

extern "C" __global__ void nothing(const float* a, const float* b, float* c, int m, int n, int k,
                                   float alpha, float beta) {}
