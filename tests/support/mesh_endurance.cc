// Processes that exchange messages of random sizes over a mesh; for the sanitizers.
//
//   mesh_endurance LIBRARY WORKERS EXCHANGES
//
// Every process starts the same exchanges from two threads, many of them under way together, and
// checks what arrives. Then the last process ends without a word: all exchanges of the others fail,
// over TCP some of them before they are aborted. Prints "good" and exits with 0 if all is so.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../custom_ops/ucx/mesh.h"

namespace {

using tf_adasum::Exchange;
using tf_adasum::Mesh;

constexpr int kMostWorkers = 16;
constexpr int kUnderWay = 8;  // exchanges of a thread

// What the processes share.
struct Shared {
  pthread_barrier_t barrier;
  size_t length[kMostWorkers];
  char address[kMostWorkers][8192];
};

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "mesh_endurance: %s\n", what.c_str());
  _exit(1);
}

// What `from` sends to `to` in an exchange: none, a few, or so many bytes that they travel by
// reference.
size_t SizeOf(uint64_t exchange, int from, int to) {
  std::mt19937_64 random(exchange * 1000 + from * 30 + to);
  const size_t most[] = {1, 100, 20000, 600000};
  return random() % most[random() % 4];
}

char ByteOf(uint64_t exchange, int from, int to) { return exchange * 31 + from * 7 + to; }

struct Buffers {
  std::vector<std::vector<char>> sent, received;
};

// Starts exchange `number` of `thread`; `left` is lessened when it has ended well.
void Begin(Mesh* mesh, int rank, int workers, uint64_t number, std::atomic<int>* left,
           std::atomic<int>* failures) {
  auto buffers = std::make_shared<Buffers>();
  Exchange exchange;
  for (int other = 0; other < workers; ++other) {
    buffers->sent.emplace_back(SizeOf(number, rank, other), ByteOf(number, rank, other));
    buffers->received.emplace_back(SizeOf(number, other, rank), ByteOf(number, other, rank) + 1);
  }
  for (int other = 0; other < workers; ++other) {
    auto& sent = buffers->sent[other];
    auto& received = buffers->received[other];
    const uint64_t tag = number << 8;
    exchange.sends.push_back({other, tag | rank, sent.data(), sent.size()});
    exchange.receives.push_back({other, tag | other, received.data(), received.size()});
  }
  exchange.memory = buffers;
  exchange.done = [=, held = buffers.get()](const std::string& failure) {
    if (!failure.empty()) {
      ++*failures;
    } else {
      for (int other = 0; other < workers; ++other) {
        for (char byte : held->received[other]) {
          if (byte != ByteOf(number, other, rank)) Fail("wrong bytes");
        }
      }
    }
    --*left;
  };
  mesh->Start(std::move(exchange));
}

void WaitUntil(const std::atomic<int>& left, int most) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (left > most) {
    if (std::chrono::steady_clock::now() > deadline) Fail("an exchange has not ended");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

void Run(Shared* shared, const char* path, int rank, int workers, int exchanges) {
  std::string failure;
  const auto* ucx = tf_adasum::OpenUcx(path, &failure);
  if (ucx == nullptr) Fail(failure);
  auto mesh = Mesh::Create(*ucx, "posix,cma,tcp,self", "lo", &failure);
  if (mesh == nullptr) Fail(failure);
  shared->length[rank] = mesh->address().size();
  std::memcpy(shared->address[rank], mesh->address().data(), mesh->address().size());
  pthread_barrier_wait(&shared->barrier);
  std::vector<std::string> addresses;
  for (int i = 0; i < workers; ++i) addresses.emplace_back(shared->address[i], shared->length[i]);
  failure = mesh->Connect(addresses);
  if (!failure.empty()) Fail(failure);

  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&, thread] {
      std::atomic<int> left{0};
      for (int i = 0; i < exchanges; ++i) {
        ++left;
        Begin(mesh.get(), rank, workers, 2 * i + thread, &left, &failures);
        WaitUntil(left, kUnderWay - 1);
      }
      WaitUntil(left, 0);
    });
  }
  for (auto& thread : threads) thread.join();
  if (failures > 0) Fail("an exchange has failed");
  pthread_barrier_wait(&shared->barrier);
  if (rank == workers - 1) _exit(0);

  std::atomic<int> left{kUnderWay};
  const uint64_t first = 2 * exchanges;
  for (int i = 0; i < kUnderWay; ++i) {
    Begin(mesh.get(), rank, workers, first + i, &left, &failures);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  mesh->Abort("aborted");
  WaitUntil(left, 0);
  left = 1;
  Begin(mesh.get(), rank, workers, first + kUnderWay, &left, &failures);
  WaitUntil(left, 0);
  if (failures != kUnderWay + 1) Fail("exchanges have ended well without one of the workers");
  mesh->Stop();
  _exit(0);
}

}  // namespace

int main(int, char** arguments) {
  const int workers = std::atoi(arguments[2]), exchanges = std::atoi(arguments[3]);
  auto* shared = static_cast<Shared*>(
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&shared->barrier, &attributes, workers);
  for (int rank = 0; rank < workers; ++rank) {
    if (fork() == 0) Run(shared, arguments[1], rank, workers, exchanges);
  }
  bool is_good = true;
  for (int i = 0; i < workers; ++i) {
    int status;
    wait(&status);
    is_good &= status == 0;
  }
  if (is_good) std::puts("good");
  return is_good ? 0 : 1;
}
