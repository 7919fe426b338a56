// A mesh: UCX connections from this process to every worker, itself included.
//
// All that UCX does is done on one thread of the mesh; other threads hand it closures. So UCX needs
// no locks, and the copies of large messages (one process reads the other's memory) are made there.
//
// UCX does not look after its peers here: where it does, it leaves out the ways on which large
// messages travel without further copies. Who knows that a worker is lost calls `Abort`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ucx_library.h"

namespace tf_adasum {

// Bytes from this process to a worker, or from a worker to this process.
struct Message {
  int worker;
  uint64_t tag;  // the same on both sides, and of no other message between them at that time
  void* data;
  size_t bytes;
};

// Messages that start together, and whose end is told once.
struct Exchange {
  std::vector<Message> receives;
  std::vector<Message> sends;
  // Owns the memory of the messages. It is given back after the last message, and never where a
  // peer may still read or write it.
  std::shared_ptr<const void> memory;
  // Called once, on the thread of the mesh: with "" after the last message, else with what failed.
  std::function<void(const std::string& failure)> done;
};

class Mesh {
 public:
  // Opens this process's end. Returns null, and the reason in `failure`, where UCX cannot.
  // `transports` and `device` are what UCX_TLS and UCX_NET_DEVICES would say, which count first.
  static std::unique_ptr<Mesh> Create(const UcxLibrary& ucx, const std::string& transports,
                                      const std::string& device, std::string* failure);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Bytes by which the others find this process; how they get there does not matter.
  const std::string& address() const { return address_; }

  // Connects to all workers, whose addresses are in the order of their ranks; starts the thread.
  // Returns what failed, "" if nothing.
  std::string Connect(const std::vector<std::string>& addresses);

  // Starts an exchange from any thread; returns its number.
  uint64_t Start(Exchange exchange);

  // Ends the wait for an exchange with a failure, if it has not ended: its messages go on.
  void Leave(uint64_t number, const std::string& failure);

  // Ends all exchanges, those to come too, with a failure, without waiting for anybody. UCX cannot
  // take messages back that a peer may be reading or writing, so it is not called any more, and
  // their memory is kept.
  void Abort(const std::string& failure);

  // Ends the thread, before the process ends.
  void Stop();

  // Ends the thread, and UCX's part too if all that was started has ended, here and on the other
  // workers. Nothing may be started after it.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;

  struct Open;
  struct Transfer {
    Open* open;
    const Message* message;
    bool is_receive;
  };
  // An exchange that has not ended.
  struct Open {
    Mesh* mesh;
    uint64_t number;
    Exchange exchange;
    std::vector<Transfer> transfers;
    size_t left;  // of them
    bool is_told = false;
  };
  struct Peer {
    Mesh* mesh;
    int worker;
    ucp_ep_h endpoint = nullptr;
    std::string failure;  // of the connection
    Clock::time_point failed_at;
  };

  explicit Mesh(const UcxLibrary& ucx) : ucx_(ucx) {}
  bool Init(const std::string& transports, const std::string& device, std::string* failure);
  void Destroy();

  // On the thread:
  void Loop();
  bool TakePosted();
  void Sleep();
  void Begin(uint64_t number, Exchange exchange);
  void Launch(Transfer* transfer);
  void Finish(Transfer* transfer, const std::string& failure);
  void Break(const std::string& failure);
  void BreakIfLostForLong();
  std::string WhatFailed(const Transfer& transfer, ucs_status_t status, size_t received) const;

  void Post(std::function<void()> closure);
  static void Sent(void* request, ucs_status_t status, void* transfer);
  static void Received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                       void* transfer);
  static void Lost(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  const UcxLibrary& ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  std::vector<Peer> peers_;  // by rank
  int events_ = -1;          // readable when UCX has something to do
  int wake_ = -1;            // readable when something was posted while the thread slept
  std::thread thread_;
  std::atomic<bool> stops_{false};
  std::atomic<bool> sleeps_{false};
  std::atomic<uint64_t> exchanges_{0};

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_

  // Of the thread alone:
  std::vector<std::function<void()>> taken_;
  std::map<uint64_t, std::unique_ptr<Open>> open_;  // by number
  std::string failure_;                             // of the mesh; "" while it works
  bool has_lost_ = false;                           // a peer
};

}  // namespace tf_adasum
