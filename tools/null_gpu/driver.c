// CUDA's driver without a GPU, for Triton: what it launches is counted and logged by runtime.c.
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

extern void nullgpu_log(const char*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, size_t, void*, int,
                        size_t, long, long, long, long) __attribute__((weak));
typedef struct {
  unsigned gx, gy, gz, bx, by, bz, smem;
  void* stream;
  void* attrs;
  unsigned n;
} LaunchConfig;
int cuInit(unsigned f) { return 0; }
int cuDevicePrimaryCtxGetState(int d, unsigned* f, int* a) {
  *f = 0;
  *a = 1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** c, int d) {
  *c = (void*)0x1234;
  return 0;
}
int cuDriverGetVersion(int* v) {
  *v = 13000;
  return 0;
}
int cuDeviceGetCount(int* n) {
  const char* e = getenv("NULLGPU_COUNT");
  *n = e ? atoi(e) : 1;
  return 0;
}
int cuGetErrorString(int e, const char** s) {
  *s = "stub";
  return 0;
}
int cuGetErrorName(int e, const char** s) {
  *s = "stub";
  return 0;
}
int cuDeviceGet(int* d, int i) {
  *d = i;
  return 0;
}
int cuCtxGetCurrent(void** c) {
  *c = (void*)0x1234;
  return 0;
}
int cuCtxSetCurrent(void* c) { return 0; }
int cuCtxGetDevice(int* d) {
  *d = 0;
  return 0;
}
int cuCtxGetLimit(size_t* s, int l) {
  *s = 0;
  return 0;
}
int cuCtxSetLimit(int l, size_t s) { return 0; }
int cuDeviceGetAttribute(int* v, int a, int d) {
  switch (a) {
    case 16: *v = 132; break;
    case 8: *v = 49152; break;
    case 97: *v = 232448; break;
    case 81: *v = 233472; break;
    case 75: *v = 9; break;
    case 76: *v = 0; break;
    case 10: *v = 32; break;
    case 12: *v = 65536; break;
    case 82: *v = 65536; break;
    case 39: *v = 2048; break;
    case 13: *v = 1980000; break;
    case 36: *v = 3201000; break;
    case 37: *v = 6144; break;
    default: *v = 1;
  }
  return 0;
}
typedef struct {
  char name[256];
} Function;
int cuModuleLoadData(void** m, const void* d) {
  *m = (void*)0x77;
  return 0;
}
int cuModuleLoad(void** m, const char* d) {
  *m = (void*)0x77;
  return 0;
}
int cuModuleLoadDataEx(void** m, const void* d, unsigned n, void* o, void* v) {
  *m = (void*)0x77;
  return 0;
}
int cuModuleUnload(void* m) { return 0; }
int cuModuleGetFunction(void** f, void* m, const char* n) {
  Function* x = calloc(1, sizeof(Function));
  strncpy(x->name, n, 255);
  *f = x;
  return 0;
}
int cuFuncGetAttribute(int* v, int a, void* f) {
  *v = a == 0 ? 1024 : a == 4 ? 64 : a == 8 ? 232448 : 0;
  return 0;
}
int cuFuncSetAttribute(void* f, int a, int v) { return 0; }
int cuFuncSetCacheConfig(void* f, int c) { return 0; }
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned smem,
                   void* s, void** p, void** e) {
  nullgpu_log(((Function*)f)->name, gx, gy, gz, bx, by, bz, smem, s, 4, 0, 0, 0, 0, 0);
  return 0;
}
int cuLaunchKernelEx(const LaunchConfig* c, void* f, void** p, void** e) {
  nullgpu_log(((Function*)f)->name, c->gx, c->gy, c->gz, c->bx, c->by, c->bz, c->smem, c->stream, 4, 0, 0, 0, 0, 0);
  return 0;
}
int cuPointerGetAttribute(void* d, int a, unsigned long long p) {
  *(unsigned long long*)d = p;
  return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, void* f, int b, size_t s) {
  *n = 2;
  return 0;
}
int cuOccupancyMaxActiveClusters(int* n, void* f, void* c) {
  *n = 1;
  return 0;
}
int cuTensorMapEncodeTiled(void) { return 0; }
int cuStreamWriteValue32(void) { return 0; }
int cuGetProcAddress_v2(const char* s, void** f, int v, unsigned long long fl, void* r) {
  *f = 0;
  return 500;
}
int cuLinkCreate(void) { return 0; }
int cuLinkAddData(void) { return 0; }
int cuLinkComplete(void) { return 0; }
int cuMemGetAddressRange(void) { return 0; }
