// Functions of glibc at their oldest versions, so that the library loads on systems with glibc 2.28, the oldest on
// which PyTorch's wheels run. The linker would choose the newest versions; these definitions, hidden in the library,
// come before. They are those that the library calls itself, and a static libstdc++.
#include <cstddef>

#if defined(__x86_64__) && defined(__GLIBC__)

// The compiler would give a function that it knows, such as exp, default visibility: it gets its name by `asm`.
#define RNNKERN_OLD(result, name, parameters, arguments) \
  result old_##name parameters;                          \
  asm(".symver old_" #name ", " #name "@GLIBC_2.2.5");   \
  result own_##name parameters asm(#name);               \
  result own_##name parameters { return old_##name arguments; }

extern "C" {

struct stat64;

RNNKERN_OLD(double, exp, (double x), (x))
RNNKERN_OLD(double, log, (double x), (x))
RNNKERN_OLD(double, log2, (double x), (x))
RNNKERN_OLD(void*, dlopen, (const char* file, int mode), (file, mode))
RNNKERN_OLD(void*, dlsym, (void* library, const char* name), (library, name))
RNNKERN_OLD(char*, dlerror, (), ())
RNNKERN_OLD(int, pthread_once, (int* once, void (*f)()), (once, f))

int old_fxstat64(int version, int file, stat64* to);
asm(".symver old_fxstat64, __fxstat64@GLIBC_2.2.5");
int fstat64(int file, stat64* to) { return old_fxstat64(1, file, to); }

int getentropy(void* to, size_t bytes);
unsigned arc4random() {
  unsigned drawn = 0;
  getentropy(&drawn, sizeof drawn);
  return drawn;
}

char __libc_single_threaded = 0;  // libstdc++ then always counts references with atomic instructions
}

#endif
