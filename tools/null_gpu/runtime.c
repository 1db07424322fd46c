// CUDA's runtime and cuBLAS without a GPU: torch believes in an H200 that executes nothing.
//
// Launches are counted and logged. Memory of the device is memory of the host, and kernels leave it as it is. What a
// capture forbids is refused as CUDA refuses it. Not here: cuDNN, NCCL, CUPTI. benchmarks/gpu/launch_log.py calls:
//   nullgpu_start, nullgpu_stop, nullgpu_dump(path)   log launches, a line each
//   nullgpu_count(kind), nullgpu_reset                0 kernels, 1 copies, 2 memsets, 3 products, 4 Triton, 5 graphs
//   nullgpu_syncs                                     how often the host has waited
// NULLGPU_COUNT is the number of devices. With NULLGPU_SMEM, a launch with too much shared memory is reported.
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE_BYTES (139ull << 30)

typedef struct {
  const char* name;
  unsigned g[3], b[3];
  size_t smem;
  void* stream;
  int captured;
  int kind;
  size_t bytes;
  long m, n, k, batch;
} Entry;
#define MAX_ENTRIES (1 << 21)
static Entry* entries;
static volatile long num_entries;
static int is_logging = 0;
static long counts[8];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

// ---- capture state
static cudaStream_t capture_stream = 0;
static unsigned long long capture_id = 0;
static int capture_status = 0;  // 0 none, 1 active, 2 invalid
static enum cudaStreamCaptureMode capture_mode;
static pthread_t capture_thread;
static cudaStream_t joined[64];
static int num_joined = 0;
static void* capture_events[4096];
static int num_capture_events = 0;
static __thread enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static int is_capturing(cudaStream_t s) {
  if (capture_status == 0) return 0;
  if (s == capture_stream) return 1;
  for (int i = 0; i < num_joined; i++)
    if (joined[i] == s) return 1;
  return 0;
}
static int is_forbidden_here(void) {  // a call that a capture forbids
  if (capture_status != 1) return 0;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return 0;
  if (capture_mode == cudaStreamCaptureModeGlobal) return 1;
  if (capture_mode == cudaStreamCaptureModeThreadLocal) return pthread_equal(pthread_self(), capture_thread);
  return 0;
}
static cudaError_t last_error = cudaSuccess;
static cudaError_t refuse(const char* what) {
  fprintf(stderr, "[nullgpu] refused while capturing: %s\n", what);
  capture_status = 2;
  last_error = cudaErrorStreamCaptureUnsupported;
  return last_error;
}

void nullgpu_log(const char* name, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                 size_t smem, void* stream, int kind, size_t bytes, long m, long n, long k, long batch) {
  __sync_fetch_and_add(&counts[kind], 1);
  int c = is_capturing((cudaStream_t)stream);
  if (capture_status == 1 && !c)
    fprintf(stderr, "[nullgpu] NOT CAPTURED while capturing: kind %d %s on stream %p\n", kind, name ? name : "?",
            stream);
  if (!is_logging) return;
  long i = __sync_fetch_and_add(&num_entries, 1);
  if (i >= MAX_ENTRIES) return;
  Entry* e = &entries[i];
  e->name = name;
  e->g[0] = gx;
  e->g[1] = gy;
  e->g[2] = gz;
  e->b[0] = bx;
  e->b[1] = by;
  e->b[2] = bz;
  e->smem = smem;
  e->stream = stream;
  e->captured = c;
  e->kind = kind;
  e->bytes = bytes;
  e->m = m;
  e->n = n;
  e->k = k;
  e->batch = batch;
}
void nullgpu_start(void) {
  if (!entries)
    entries = mmap(0, sizeof(Entry) * (size_t)MAX_ENTRIES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  num_entries = 0;
  is_logging = 1;
  memset(counts, 0, sizeof counts);
}
void nullgpu_stop(void) { is_logging = 0; }
long nullgpu_count(int kind) { return counts[kind]; }
void nullgpu_reset(void) { memset(counts, 0, sizeof counts); }
void nullgpu_dump(const char* path) {
  FILE* f = fopen(path, "w");
  for (long i = 0; i < num_entries && i < MAX_ENTRIES; i++) {
    Entry* e = &entries[i];
    fprintf(f, "%d\t%s\t%u,%u,%u\t%u,%u,%u\t%zu\t%p\t%d\t%zu\t%ld,%ld,%ld,%ld\n", e->kind, e->name ? e->name : "?",
            e->g[0], e->g[1], e->g[2], e->b[0], e->b[1], e->b[2], e->smem, e->stream, e->captured, e->bytes, e->m, e->n,
            e->k, e->batch);
  }
  fclose(f);
}

// ---- kernel names
#define NAME_SLOTS (1 << 17)
static struct {
  const void* f;
  const char* n;
} kernel_names[NAME_SLOTS];
static void set_name(const void* f, const char* n) {
  size_t h = ((size_t)f >> 4) * 2654435761u % NAME_SLOTS;
  while (kernel_names[h].f && kernel_names[h].f != f) h = (h + 1) % NAME_SLOTS;
  kernel_names[h].f = f;
  kernel_names[h].n = n;
}
static const char* name_of(const void* f) {
  size_t h = ((size_t)f >> 4) * 2654435761u % NAME_SLOTS;
  while (kernel_names[h].f) {
    if (kernel_names[h].f == f) return kernel_names[h].n;
    h = (h + 1) % NAME_SLOTS;
  }
  return 0;
}
void** __cudaRegisterFatBinary(void* c) {
  static long n = 1;
  return (void**)(0x5000 + 16 * (n++));
}
void __cudaRegisterFatBinaryEnd(void** h) {}
void __cudaUnregisterFatBinary(void** h) {}
char __cudaInitModule(void** h) { return 1; }
void __cudaRegisterFunction(void** h, const char* hostFun, char* deviceFun, const char* deviceName, int tl, void* a,
                            void* b, void* c, void* d, int* w) {
  set_name(hostFun, deviceName);
}
void __cudaRegisterVar(void** h, char* hv, char* da, const char* dn, int ext, size_t size, int constant, int global) {}
cudaError_t __cudaGetKernel(cudaKernel_t* k, const void* f) {
  *k = (cudaKernel_t)f;
  return cudaSuccess;
}
static cudaError_t launched(const void* f, dim3 g, dim3 b, size_t smem, cudaStream_t s) {
  if (getenv("NULLGPU_SMEM") && smem > 232448) fprintf(stderr, "[nullgpu] too much shared memory\n");
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.y > 65535 || g.z > 65535) {
    fprintf(stderr, "[nullgpu] bad grid %u %u %u of %s\n", g.x, g.y, g.z, name_of(f));
    last_error = cudaErrorInvalidConfiguration;
    return last_error;
  }
  nullgpu_log(name_of(f), g.x, g.y, g.z, b.x, b.y, b.z, smem, s, 0, 0, 0, 0, 0, 0);
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t s) {
  return launched(k, g, b, smem, s);
}
cudaError_t cudaLaunchKernel(const void* f, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t s) {
  return launched(f, g, b, smem, s);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* c, const void* f, void** args) {
  return launched(f, c->gridDim, c->blockDim, c->dynamicSmemBytes, c->stream);
}
cudaError_t cudaLaunchCooperativeKernel(const void* f, dim3 g, dim3 b, void** args, size_t smem, cudaStream_t s) {
  return launched(f, g, b, smem, s);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t fn, void* u) {
  fn(u);
  return cudaSuccess;
}
cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t cb, void* u, unsigned f) {
  cb(s, cudaSuccess, u);
  return cudaSuccess;
}

// ---- devices
static int num_devices(void) {
  const char* e = getenv("NULLGPU_COUNT");
  return e ? atoi(e) : 1;
}
static __thread int current_device = 0;
cudaError_t cudaGetDeviceCount(int* n) {
  *n = num_devices();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* d) {
  *d = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int d) {
  if (d < 0 || d >= num_devices()) return cudaErrorInvalidDevice;
  current_device = d;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* v) {
  *v = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetLastError(void) {
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}
cudaError_t cudaPeekAtLastError(void) { return last_error; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* a, int* b) {
  *a = 0;
  *b = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* c, int a, int b) {
  *c = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int a, unsigned b) { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* s, int n, int d) {
  strncpy(s, "0000:00:00.0", n);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, enum cudaDeviceAttr a, int d) {
  switch (a) {
    case cudaDevAttrMultiProcessorCount: *v = 132; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *v = 49152; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *v = 233472; break;
    case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *v = 0; break;
    case cudaDevAttrWarpSize: *v = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *v = 1024; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *v = 2048; break;
    case cudaDevAttrMaxGridDimX: *v = 2147483647; break;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ: *v = 65535; break;
    default: *v = 1;
  }
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp* p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "NVIDIA H200");
  p->totalGlobalMem = 141ull << 30;
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = 1024;
  p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = 65535;
  p->maxGridSize[2] = 65535;
  p->major = 9;
  p->minor = 0;
  p->multiProcessorCount = 132;
  p->maxThreadsPerMultiProcessor = 2048;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerMultiprocessor = 65536;
  p->sharedMemPerBlockOptin = 232448;
  p->l2CacheSize = 60 << 20;
  p->memoryBusWidth = 6144;
  p->textureAlignment = 512;
  p->maxBlocksPerMultiProcessor = 32;
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorStreamCaptureUnsupported ? "operation not permitted when stream is capturing"
                                                : "error of the null GPU";
}
const char* cudaGetErrorName(cudaError_t e) { return "nullgpu"; }
static int generic(void) { return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* s, void** f, unsigned v, unsigned long long fl,
                                             enum cudaDriverEntryPointQueryResult* r) {
  *f = (void*)generic;
  if (r) *r = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes* a, const void* f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 64;
  a->binaryVersion = 90;
  a->ptxVersion = 90;
  a->maxDynamicSharedSizeBytes = 232448;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* f, enum cudaFuncAttribute a, int v) { return cudaSuccess; }
cudaError_t cudaGetSymbolAddress(void** p, const void* s) {
  static char buf[1 << 20];
  *p = buf;
  return cudaSuccess;
}
cudaError_t cudaMemcpyToSymbol(const void* s, const void* src, size_t n, size_t o, enum cudaMemcpyKind k) {
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, const void* f, int b, size_t s) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, const void* f, int b, size_t s,
                                                                   unsigned fl) {
  *n = 2;
  return cudaSuccess;
}
cudaError_t cudaProfilerStart(void) { return cudaSuccess; }
cudaError_t cudaProfilerStop(void) { return cudaSuccess; }

// ---- memory
typedef struct {
  char* p;
  size_t n;
  int dev;
} Range;
static Range ranges[1 << 16];
static int num_ranges = 0;
static size_t used_bytes = 0;
static int range_of(const void* q) {
  for (int i = num_ranges - 1; i >= 0; i--)
    if (ranges[i].p && (char*)q >= ranges[i].p && (char*)q < ranges[i].p + ranges[i].n) return i;
  return -1;
}
static void add_range(void* p, size_t n, int dev) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_ranges; i++)
    if (!ranges[i].p) {
      ranges[i].p = p;
      ranges[i].n = n;
      ranges[i].dev = dev;
      pthread_mutex_unlock(&lock);
      return;
    }
  ranges[num_ranges].p = p;
  ranges[num_ranges].n = n;
  ranges[num_ranges].dev = dev;
  num_ranges++;
  pthread_mutex_unlock(&lock);
}
cudaError_t cudaMalloc(void** p, size_t n) {
  if (is_forbidden_here()) return refuse("cudaMalloc");
  if (used_bytes + n > DEVICE_BYTES) {
    *p = 0;
    last_error = cudaErrorMemoryAllocation;
    return last_error;
  }
  *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  used_bytes += n;
  add_range(*p, n, 1);
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
  if (!p) return cudaSuccess;
  if (is_forbidden_here()) return refuse("cudaFree");
  pthread_mutex_lock(&lock);
  int i = range_of(p);
  if (i >= 0) {
    munmap(ranges[i].p, ranges[i].n);
    used_bytes -= ranges[i].n;
    ranges[i].p = 0;
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
cudaError_t cudaMallocAsync(void** p, size_t n, cudaStream_t s) { return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void* p, cudaStream_t s) { return cudaFree(p); }
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned f) {
  if (is_forbidden_here()) return refuse("cudaHostAlloc");
  *p = mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  add_range(*p, n, 0);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  pthread_mutex_lock(&lock);
  int i = range_of(p);
  if (i >= 0) {
    munmap(ranges[i].p, ranges[i].n);
    ranges[i].p = 0;
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* p, size_t n, unsigned f) { return cudaSuccess; }
cudaError_t cudaHostUnregister(void* p) { return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes* a, const void* p) {
  memset(a, 0, sizeof *a);
  pthread_mutex_lock(&lock);
  int i = range_of(p);
  a->type = i < 0 ? cudaMemoryTypeUnregistered : ranges[i].dev ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  pthread_mutex_unlock(&lock);
  a->device = 0;
  a->devicePointer = (void*)p;
  a->hostPointer = (void*)p;
  return cudaSuccess;
}
static int is_device(const void* p) {
  pthread_mutex_lock(&lock);
  int i = range_of(p);
  int r = i >= 0 && ranges[i].dev;
  pthread_mutex_unlock(&lock);
  return r;
}
cudaError_t cudaMemGetInfo(size_t* f, size_t* t) {
  *f = DEVICE_BYTES - used_bytes;
  *t = DEVICE_BYTES;
  return cudaSuccess;
}
static cudaError_t copied(void* d, const void* s, size_t n, enum cudaMemcpyKind k, cudaStream_t st, int is_sync) {
  int dk = is_device(d), sk = is_device(s);
  pthread_mutex_lock(&lock);
  int hi = range_of(dk ? s : d);
  int pinned = hi >= 0 && !ranges[hi].dev;
  pthread_mutex_unlock(&lock);
  if (is_capturing(st) && (is_sync || ((!dk || !sk) && !pinned))) {
    fprintf(stderr, "[nullgpu] pageable copy of %zu bytes while capturing\n", n);
    return refuse("cudaMemcpy of pageable memory");
  }
  nullgpu_log(dk && sk ? "memcpy D2D"
              : dk     ? (pinned ? "memcpy H2D pinned" : "memcpy H2D pageable")
                       : (pinned ? "memcpy D2H pinned" : "memcpy D2H pageable"),
              1, 1, 1, 1, 1, 1, 0, st, 1, n, 0, 0, 0, 0);
  if (n <= (1 << 20) || !(dk && sk)) memcpy(d, s, n);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, enum cudaMemcpyKind k, cudaStream_t st) {
  return copied(d, s, n, k, st, 0);
}
cudaError_t cudaMemcpy(void* d, const void* s, size_t n, enum cudaMemcpyKind k) {
  if (is_forbidden_here()) return refuse("cudaMemcpy");
  return copied(d, s, n, k, 0, 1);
}
cudaError_t cudaMemcpyPeerAsync(void* d, int dd, const void* s, int sd, size_t n, cudaStream_t st) {
  return copied(d, s, n, 0, st, 0);
}
cudaError_t cudaMemcpy2DAsync(void* d, size_t dp, const void* s, size_t sp, size_t w, size_t h, enum cudaMemcpyKind k,
                              cudaStream_t st) {
  nullgpu_log("memcpy2D", 1, 1, 1, 1, 1, 1, 0, st, 1, w * h, 0, 0, 0, 0);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t st) {
  nullgpu_log("memset", 1, 1, 1, 1, 1, 1, 0, st, 2, n, 0, 0, 0, 0);
  if (n <= 4096) memset(d, v, n);
  return cudaSuccess;
}
cudaError_t cudaMemset(void* d, int v, size_t n) {
  if (n <= 4096) memset(d, v, n);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* p, int d) {
  *p = 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t p, enum cudaMemPoolAttr a, void* v) {
  *(uint64_t*)v = 0;
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t p, enum cudaMemPoolAttr a, void* v) { return cudaSuccess; }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t p, size_t n) { return cudaSuccess; }

// ---- streams and events
static long num_syncs = 0;
long nullgpu_syncs(void) { return num_syncs; }
cudaError_t cudaDeviceSynchronize(void) {
  if (is_forbidden_here()) return refuse("cudaDeviceSynchronize");
  num_syncs++;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  if (is_capturing(s)) return refuse("cudaStreamSynchronize");
  num_syncs++;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t s) {
  if (is_capturing(s)) return refuse("cudaStreamQuery");
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus* st) {
  *st = is_capturing(s) ? (capture_status == 2 ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive)
                        : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus* st, unsigned long long* id,
                                     cudaGraph_t* g, const cudaGraphNode_t** d, const cudaGraphEdgeData** e,
                                     size_t* n) {
  int c = is_capturing(s);
  if (st)
    *st = c ? (capture_status == 2 ? cudaStreamCaptureStatusInvalidated : cudaStreamCaptureStatusActive)
            : cudaStreamCaptureStatusNone;
  if (id && c) *id = capture_id;
  if (g) *g = 0;
  if (n) *n = 0;
  return cudaSuccess;
}
static long capture_began_at = 0;
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m) {
  if (s == 0) {
    fprintf(stderr, "[nullgpu] capture on the default stream\n");
    return cudaErrorStreamCaptureUnsupported;
  }
  capture_stream = s;
  capture_status = 1;
  capture_id++;
  capture_mode = m;
  capture_thread = pthread_self();
  num_joined = 0;
  num_capture_events = 0;
  capture_began_at = counts[0] + counts[1] + counts[2] + counts[3] + counts[4];
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  int bad = capture_status == 2;
  capture_status = 0;
  capture_stream = 0;
  if (bad) {
    *g = 0;
    return cudaErrorStreamCaptureInvalidated;
  }
  *g = (cudaGraph_t)(capture_id * 16 + 0x900000);
  fprintf(stderr, "[nullgpu] captured a graph of %ld nodes\n",
          counts[0] + counts[1] + counts[2] + counts[3] + counts[4] - capture_began_at);
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode* m) {
  enum cudaStreamCaptureMode o = thread_mode;
  thread_mode = *m;
  *m = o;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* e, cudaGraph_t g, unsigned long long f) {
  *e = (cudaGraphExec_t)g;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) { return cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
  nullgpu_log("graph launch", 1, 1, 1, 1, 1, 1, 0, s, 5, 0, 0, 0, 0, 0);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t* n, size_t* c) {
  *c = 1;
  return cudaSuccess;
}
cudaError_t cudaGraphDebugDotPrint(cudaGraph_t g, const char* p, unsigned f) { return cudaSuccess; }
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t n, cudaGraphNode_t* d, cudaGraphEdgeData* e, size_t* c) {
  *c = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned f, int p) {
  static long n = 0x1000;
  *s = (cudaStream_t)(n += 16);
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int* p) {
  *p = 0;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned f) {
  static long n = 0x100000;
  *e = (cudaEvent_t)(n += 16);
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  if (is_capturing(s) && num_capture_events < 4096) capture_events[num_capture_events++] = e;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned f) { return cudaEventRecord(e, s); }
static int is_captured_event(void* e) {
  if (!capture_status) return 0;
  for (int i = 0; i < num_capture_events; i++)
    if (capture_events[i] == e) return 1;
  return 0;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  if (is_captured_event(e)) return refuse("cudaEventQuery of a captured event");
  if (is_forbidden_here()) return refuse("cudaEventQuery");
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (is_captured_event(e) || is_forbidden_here()) return refuse("cudaEventSynchronize");
  num_syncs++;
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t a, cudaEvent_t b) {
  *ms = 1.0f;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned f) {
  if (is_captured_event(e) && !is_capturing(s) && num_joined < 64)
    joined[num_joined++] = s;
  else if (is_capturing(s) && !is_captured_event(e)) {
    return refuse("a captured stream waits for an event from outside");
  }
  return cudaSuccess;
}

// ---- cuBLAS
typedef int Status;
typedef void* Handle;
Status cublasCreate_v2(Handle* h) {
  static long n = 0x700000;
  if (is_forbidden_here()) refuse("cublasCreate");
  *h = (Handle)(n += 16);
  return 0;
}
Status cublasDestroy_v2(Handle h) { return 0; }
static __thread void* cublas_stream;
Status cublasSetStream_v2(Handle h, void* s) {
  cublas_stream = s;
  return 0;
}
Status cublasSetWorkspace_v2(Handle h, void* w, size_t n) { return 0; }
Status cublasSetMathMode(Handle h, int m) { return 0; }
Status cublasGetMathMode(Handle h, int* m) {
  *m = 0;
  return 0;
}
Status cublasSetPointerMode_v2(Handle h, int m) { return 0; }
Status cublasGetPointerMode_v2(Handle h, int* m) {
  *m = 0;
  return 0;
}
static void log_product(const char* n, long m, long nn, long k, long b, void* s) {
  nullgpu_log(n, 1, 1, 1, 1, 1, 1, 0, s, 3, 0, m, nn, k, b);
}
Status cublasGemmEx(Handle h, int ta, int tb, int m, int n, int k, const void* al, const void* A, int At, int lda,
                    const void* B, int Bt, int ldb, const void* be, void* C, int Ct, int ldc, int comp, int algo) {
  static const char* N[4] = {"gemmNN", "gemmNT", "gemmTN", "gemmTT"};
  log_product(N[(ta != 0) * 2 + (tb != 0)], m, n, k, 1, cublas_stream);
  return 0;
}
Status cublasGemmStridedBatchedEx(Handle h, int ta, int tb, int m, int n, int k, const void* al, const void* A, int At,
                                  int lda, long long sa, const void* B, int Bt, int ldb, long long sb, const void* be,
                                  void* C, int Ct, int ldc, long long sc, int bc, int comp, int algo) {
  log_product("bgemm", m, n, k, bc, cublas_stream);
  return 0;
}
Status cublasSgemm_v2(Handle h, int ta, int tb, int m, int n, int k, const float* al, const float* A, int lda,
                      const float* B, int ldb, const float* be, float* C, int ldc) {
  log_product("sgemm", m, n, k, 1, cublas_stream);
  return 0;
}
Status cublasSgemmStridedBatched(Handle h, int ta, int tb, int m, int n, int k, const float* al, const float* A,
                                 int lda, long long sa, const float* B, int ldb, long long sb, const float* be,
                                 float* C, int ldc, long long sc, int bc) {
  log_product("sbgemm", m, n, k, bc, cublas_stream);
  return 0;
}
Status cublasSgemv_v2(Handle h, int t, int m, int n, const float* al, const float* A, int lda, const float* x, int ix,
                      const float* be, float* y, int iy) {
  log_product("sgemv", m, n, 1, 1, cublas_stream);
  return 0;
}
Status cublasDotEx(Handle h, int n, const void* x, int xt, int ix, const void* y, int yt, int iy, void* r, int rt,
                   int et) {
  return 0;
}
size_t cublasLtGetVersion(void) { return 130100; }
typedef struct {
  long rows, cols;
} Layout;
Status cublasLtMatrixLayoutCreate(Handle* l, int t, uint64_t r, uint64_t c, int64_t ld) {
  Layout* x = malloc(256);
  memset(x, 0, 256);
  x->rows = r;
  x->cols = c;
  *l = x;
  return 0;
}
Status cublasLtMatrixLayoutDestroy(Handle l) {
  free(l);
  return 0;
}
Status cublasLtMatrixLayoutSetAttribute(Handle l, int a, const void* b, size_t n) { return 0; }
Status cublasLtMatmulDescCreate(Handle* d, int c, int s) {
  *d = calloc(1, 256);
  return 0;
}
Status cublasLtMatmulDescDestroy(Handle d) {
  free(d);
  return 0;
}
Status cublasLtMatmulDescSetAttribute(Handle d, int a, const void* b, size_t n) { return 0; }
Status cublasLtMatmulPreferenceCreate(Handle* p) {
  *p = calloc(1, 256);
  return 0;
}
Status cublasLtMatmulPreferenceDestroy(Handle p) {
  free(p);
  return 0;
}
Status cublasLtMatmulPreferenceSetAttribute(Handle p, int a, const void* b, size_t n) { return 0; }
Status cublasLtMatmulAlgoGetHeuristic(Handle h, Handle d, Handle a, Handle b, Handle c, Handle dd, Handle p, int req,
                                      void* res, int* ret) {
  *ret = 1;
  return 0;
}
Status cublasLtMatmul(Handle h, Handle desc, const void* al, const void* A, Handle la, const void* B, Handle lb,
                      const void* be, const void* C, Handle lc, void* D, Handle ld, const void* algo, void* ws,
                      size_t n, void* s) {
  Layout *x = la, *z = ld;
  log_product("ltmatmul", z->rows, z->cols, x->rows == z->rows ? x->cols : x->rows, 1, s);
  return 0;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned f) { return cudaStreamCreateWithPriority(s, f, 0); }
cudaError_t cudaLibraryLoadData(cudaLibrary_t* l, const void* c, enum cudaJitOption* a, void** b, unsigned n,
                                enum cudaLibraryOption* d, void** e, unsigned m) {
  *l = (cudaLibrary_t)0x99;
  return cudaSuccess;
}
cudaError_t cudaLibraryGetKernel(cudaKernel_t* k, cudaLibrary_t l, const char* n) {
  *k = (cudaKernel_t)strdup(n);
  set_name(*k, strdup(n));
  return cudaSuccess;
}
cudaError_t cudaLibraryUnload(cudaLibrary_t l) { return cudaSuccess; }
cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t k, enum cudaFuncAttribute a, int v, int d) {
  return cudaSuccess;
}
Status cublasSetSmCountTarget(Handle h, int n) { return 0; }
