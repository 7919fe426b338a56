#include "adasum_ucx.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <string>
#include <vector>

namespace tf_adasum {
namespace {

std::mutex mutex;
// Held while a child process tests a mesh, and while a mesh is created. Two forks at the same time
// deadlock in OpenBLAS's fork handler (observed with SciPy's OpenBLAS). A child that is forked
// while a mesh is created would inherit locked mutexes of UCX.
std::mutex creation_mutex;
const UcxLibrary* library = nullptr;  // guarded by mutex
pid_t process;  // the process that opened UCX; guarded by mutex until it is set

// Never destroyed, because threads of TensorFlow may run longer than static objects exist.
std::vector<std::unique_ptr<Mesh>>& Meshes() {
  static auto* const meshes = new std::vector<std::unique_ptr<Mesh>>;
  return *meshes;
}

// Removes UCX's files in /dev/shm that this process has mapped. They have names only if the user
// sets UCX_POSIX_USE_PROC_LINK=n. UCX removes the files of a mesh when the mesh is destroyed, but a
// mesh can be destroyed only after all its exchanges have ended.
void RemoveSharedFiles() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/'), name = line.find("/ucx_shm_posix_");
    if (name != std::string::npos && line.find(" (deleted)") == std::string::npos) {
      unlink(line.c_str() + path);
    }
  }
}

// UCX cleans up when the process exits, so the threads that use it must stop before. A forked child
// process does not have these threads.
void StopAll() {
  if (getpid() != process) return;
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& mesh : Meshes()) mesh->Stop();
  RemoveSharedFiles();
}

// The time limit for a child process to create a mesh, which normally takes milliseconds.
constexpr int kProbeTimeoutMs = 10000;

// Runs in the child process: creates and destroys a mesh, writes an error message to `out`, and
// exits. If it crashes, no signal handler of TensorFlow or Python runs, and no core is dumped. The
// output of UCX is discarded, so that it is not printed twice.
[[noreturn]] void ProbeInChild(const UcxLibrary& ucx, const char* transports, const char* device,
                               int out) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) signal(number, SIG_DFL);
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  const int null = open("/dev/null", O_WRONLY);
  dup2(null, STDOUT_FILENO);
  dup2(null, STDERR_FILENO);
  std::string failure;
  Mesh::Create(ucx, transports, device, &failure).reset();
  [[maybe_unused]] const ssize_t written = write(out, failure.data(), failure.size());
  _exit(0);
}

// Waits for the child process. Returns "" if it has created a mesh, otherwise an error message.
std::string WaitForProbe(pid_t child, int in) {
  std::string failure;
  char buffer[256];
  pollfd awaited{in, POLLIN, 0};
  bool is_late = false;
  for (;;) {
    const int ready = poll(&awaited, 1, kProbeTimeoutMs);
    if (ready < 0 && errno == EINTR) continue;  // without data, `read` would wait for ever
    is_late = ready <= 0;
    const ssize_t count = is_late ? 0 : read(in, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    failure.append(buffer, count);
  }
  if (is_late) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (is_late) return "UCX did not start within 10 s";
  if (WIFSIGNALED(status)) {
    return std::string("UCX crashed while it started (") + strsignal(WTERMSIG(status)) + ")";
  }
  if (failure.empty() && status != 0) return "UCX exited while it started";
  return failure;
}

void Write(const std::string& from, char* text, int capacity) {
  const size_t length = std::min<size_t>(from.size(), capacity - 1);
  std::memcpy(text, from.data(), length);
  text[length] = '\0';
}

// The tag of a message of `adasum_ucx_test_exchange`. The tags of ops may be equal, because no op uses the
// mesh at the same time.
uint64_t TagOf(int number, int sender) { return static_cast<uint64_t>(number) << 32 | sender; }

// The value of all bytes that a worker sends in `adasum_ucx_test_exchange`.
char ByteOf(int number, int sender) { return static_cast<char>(1 + 31 * number + 7 * sender); }

// The result of an exchange, for which another thread can wait. (std::promise, and waiting without
// a time limit, need symbols that the libstdc++ of RHEL 8 does not have.)
class ExchangeResult {
 public:
  void Set(const std::string& failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    failure_ = failure;
    is_set_ = true;
    condition_.notify_all();
  }

  // Returns whether the exchange ends within this time.
  bool Wait(double seconds) {
    const auto until = std::chrono::system_clock::now() + std::chrono::duration<double>(seconds);
    std::unique_lock<std::mutex> lock(mutex_);
    return condition_.wait_until(lock, until, [this] { return is_set_; });
  }

  std::string Get() {
    while (!Wait(1.0)) {
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    return failure_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable condition_;
  bool is_set_ = false;  // guarded by mutex_
  std::string failure_;  // guarded by mutex_
};

using Buffer = std::vector<char>;

// Returns an exchange with each of the other workers. `buffers` holds one receive buffer for each
// worker, and then the send buffer.
Exchange MakeTestExchange(int rank, int number, std::vector<Buffer>* buffers) {
  const int workers = static_cast<int>(buffers->size()) - 1;
  Buffer& sent = buffers->back();
  Exchange exchange;
  for (int i = 1; i < workers; ++i) {
    const int source = (rank + workers - i) % workers, target = (rank + i) % workers;
    Buffer& received = (*buffers)[source];
    exchange.receives.push_back({source, TagOf(number, source), received.data(), received.size()});
    exchange.sends.push_back({target, TagOf(number, rank), sent.data(), sent.size()});
  }
  return exchange;
}

}  // namespace

Mesh* FindMesh(int number) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto& meshes = Meshes();
  return number >= 0 && number < static_cast<int>(meshes.size()) ? meshes[number].get() : nullptr;
}

}  // namespace tf_adasum

using tf_adasum::Buffer;
using tf_adasum::ByteOf;
using tf_adasum::Exchange;
using tf_adasum::ExchangeResult;
using tf_adasum::FindMesh;
using tf_adasum::MakeTestExchange;
using tf_adasum::Mesh;
using tf_adasum::Write;

int adasum_ucx_open(const char* path, char* text, int capacity) {
  const std::lock_guard<std::mutex> lock(tf_adasum::mutex);
  std::string failure;
  const tf_adasum::UcxLibrary* opened = tf_adasum::OpenUcx(path, &failure);
  if (opened == nullptr) {
    Write(failure, text, capacity);
    return -1;
  }
  if (tf_adasum::library == nullptr) {
    tf_adasum::process = getpid();
    std::atexit(tf_adasum::StopAll);
  }
  tf_adasum::library = opened;
  Write(opened->get_version_string(), text, capacity);
  return 0;
}

int adasum_ucx_probe(const char* transports, const char* device, char* text, int capacity) {
  const std::lock_guard<std::mutex> start(tf_adasum::creation_mutex);
  const tf_adasum::UcxLibrary* ucx;
  {
    const std::lock_guard<std::mutex> lock(tf_adasum::mutex);
    ucx = tf_adasum::library;
    // If a mesh exists, its thread may hold locks of UCX. In a child they would never be released.
    if (!tf_adasum::Meshes().empty()) return 0;
  }
  int ends[2];
  std::string failure;
  if (ucx == nullptr) {
    failure = "UCX is not open";
  } else if (pipe2(ends, O_CLOEXEC) != 0) {
    failure = "no file descriptor is free (see ulimit -n)";
  } else {
    const pid_t child = fork();
    if (child == 0) tf_adasum::ProbeInChild(*ucx, transports, device, ends[1]);
    close(ends[1]);
    failure = child < 0 ? "no process can be created (see ulimit -u)"
                        : tf_adasum::WaitForProbe(child, ends[0]);
    close(ends[0]);
  }
  Write(failure, text, capacity);
  return failure.empty() ? 0 : -1;
}

int adasum_ucx_create(const char* transports, const char* device, char* text, int capacity) {
  const std::lock_guard<std::mutex> start(tf_adasum::creation_mutex);
  const std::lock_guard<std::mutex> lock(tf_adasum::mutex);
  std::string failure = "UCX is not open";
  std::unique_ptr<Mesh> mesh;
  if (tf_adasum::library != nullptr) {
    mesh = Mesh::Create(*tf_adasum::library, transports, device, &failure);
  }
  if (mesh == nullptr) {
    Write(failure, text, capacity);
    return -1;
  }
  auto& meshes = tf_adasum::Meshes();
  meshes.push_back(std::move(mesh));
  return static_cast<int>(meshes.size()) - 1;
}

int adasum_ucx_address(int mesh, char* address, int capacity) {
  const std::string& own = FindMesh(mesh)->address();
  std::memcpy(address, own.data(), std::min<size_t>(own.size(), capacity));
  return static_cast<int>(own.size());
}

int adasum_ucx_connect(int mesh, int workers, const char* addresses, const int* lengths, char* text,
                       int capacity) {
  std::vector<std::string> of_workers;
  for (int rank = 0; rank < workers; ++rank) {
    of_workers.emplace_back(addresses, lengths[rank]);
    addresses += lengths[rank];
  }
  const std::string failure = FindMesh(mesh)->Connect(of_workers);
  Write(failure, text, capacity);
  return failure.empty() ? 0 : -1;
}

int adasum_ucx_test_exchange(int mesh, int rank, int workers, int number, int64_t bytes,
                             double seconds, double* took, char* text, int capacity) {
  using Clock = std::chrono::steady_clock;
  auto buffers = std::make_shared<std::vector<Buffer>>(workers + 1, Buffer(bytes));
  buffers->back().assign(bytes, ByteOf(number, rank));
  // If the exchange does not end in time, `end` and the buffers exist longer than this call.
  auto end = std::make_shared<ExchangeResult>();
  Exchange exchange = MakeTestExchange(rank, number, buffers.get());
  exchange.memory = buffers;
  exchange.done = [end](const std::string& failure) { end->Set(failure); };

  const auto begun = Clock::now();
  const uint64_t started = FindMesh(mesh)->Start(std::move(exchange));
  if (!end->Wait(seconds)) FindMesh(mesh)->StopWaiting(started, "an exchange did not end in time");
  std::string failure = end->Get();
  *took = std::chrono::duration<double>(Clock::now() - begun).count();
  for (int source = 0; source < workers && failure.empty(); ++source) {
    const char expected = ByteOf(number, source);
    const Buffer& received = (*buffers)[source];
    if (source == rank || std::all_of(received.begin(), received.end(),
                                      [&](char byte) { return byte == expected; })) {
      continue;
    }
    failure = "wrong bytes arrived from the worker of rank " + std::to_string(source);
  }
  Write(failure, text, capacity);
  return failure.empty() ? 0 : -1;
}

void adasum_ucx_close(int mesh) { FindMesh(mesh)->Close(); }

void adasum_ucx_abort(const char* failure) {
  const std::lock_guard<std::mutex> lock(tf_adasum::mutex);
  for (const auto& mesh : tf_adasum::Meshes()) mesh->Abort(failure);
}
