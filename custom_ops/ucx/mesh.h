// A mesh: UCX connections from this process to every worker, including this one.
//
// Between `Connect` and `Stop`, one thread of the mesh makes all calls of UCX. Other threads pass
// closures to it. So UCX needs no locks. The thread also copies large messages: one process reads
// or writes the memory of the other process.
//
// UCX's detection of lost peers is off. If it is on, UCX does not use the transports that send
// large messages without extra copies. So the caller has to detect lost workers, and call `Abort`.
// If UCX reports a broken connection all the same, the mesh waits 5 s for `Abort`, and then fails
// all exchanges.
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

// Bytes that this process sends to a worker, or receives from a worker.
struct Message {
  int worker;
  // The same on both sides. If several messages between two processes have the same tag, the first
  // send matches the first receive, the second send the second receive, and so on.
  uint64_t tag;
  void* data;
  size_t bytes;
};

// Messages that start together and have one completion callback.
struct Exchange {
  std::vector<Message> receives;
  std::vector<Message> sends;
  // Owns the memory of the messages. It is released after the last message has completed, and never
  // while a peer may still read or write it.
  std::shared_ptr<const void> memory;
  // Called once, on the thread of the mesh: with "" after the last message has completed, or with
  // an error message at the first failure.
  std::function<void(const std::string& failure)> done;
};

class Mesh {
 public:
  // Creates this process's end of the connections. If UCX cannot do this, returns null and sets
  // `failure` to the reason. `transports` and `device` are the values for UCX_TLS and
  // UCX_NET_DEVICES, unless the user has set these variables.
  static std::unique_ptr<Mesh> Create(const UcxLibrary& ucx, const std::string& transports,
                                      const std::string& device, std::string* failure);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // The address with which others connect to this process. The caller has to send it to them.
  const std::string& address() const { return address_; }

  // Connects to all workers, whose addresses are in rank order, and starts the thread. Returns ""
  // or an error message.
  std::string Connect(const std::vector<std::string>& addresses);

  // Starts an exchange, and returns its number. Any thread may call it.
  uint64_t Start(Exchange exchange);

  // Stops waiting for an exchange: calls `done` with `failure`, unless `done` was already called.
  // The messages of the exchange continue.
  void StopWaiting(uint64_t number, const std::string& failure);

  // Ends all current and future exchanges with `failure`, without waiting for any worker. UCX
  // cannot cancel messages that a peer may be reading or writing. So UCX is not called any more,
  // and the memory of these messages is never released.
  void Abort(const std::string& failure);

  // Stops the thread. Must be called before the process exits.
  void Stop();

  // Stops the thread. If all exchanges of this process have ended, also destroys UCX's worker and
  // context. The exchanges of the other workers should also have ended. No exchange may be started
  // afterwards.
  void Close();

 private:
  using Clock = std::chrono::steady_clock;

  struct PendingExchange;
  struct Transfer {
    PendingExchange* pending;
    const Message* message;
    bool is_receive;
  };
  // An exchange whose messages have not all completed.
  struct PendingExchange {
    Mesh* mesh;
    uint64_t number;
    Exchange exchange;
    std::vector<Transfer> transfers;
    size_t transfers_left;  // number of transfers that have not completed, see `Begin`
    bool is_done = false;   // whether `done` was called
  };
  struct Peer {
    Mesh* mesh;
    int worker;
    ucp_ep_h endpoint = nullptr;
    std::string failure;  // error of the connection; "" while it works
    Clock::time_point failed_at;
  };

  explicit Mesh(const UcxLibrary& ucx) : ucx_(ucx) {}
  bool Init(const std::string& transports, const std::string& device, std::string* failure);
  void Destroy();

  // The following functions run on the thread of the mesh.
  void Loop();
  bool RunPosted();
  void Sleep();
  void Begin(uint64_t number, Exchange exchange);
  void Launch(Transfer* transfer);
  void Finish(Transfer* transfer, const std::string& failure);
  void FailAll(const std::string& failure);
  void FailIfPeerIsLost();
  std::string ErrorOf(const Transfer& transfer, ucs_status_t status, size_t received) const;

  void Post(std::function<void()> closure);
  static void OnSent(void* request, ucs_status_t status, void* transfer);
  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                         void* transfer);
  static void OnPeerError(void* peer, ucp_ep_h endpoint, ucs_status_t status);

  const UcxLibrary& ucx_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  std::vector<Peer> peers_;  // by rank
  int ucx_event_fd_ = -1;    // readable when UCX has work
  int wakeup_fd_ = -1;       // readable when a closure was posted while the thread slept
  std::thread thread_;
  std::atomic<bool> stops_{false};
  std::atomic<bool> sleeps_{false};
  std::atomic<uint64_t> exchanges_{0};

  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  // guarded by mutex_

  // Only the thread of the mesh uses the following members.
  std::vector<std::function<void()>> running_;
  std::map<uint64_t, std::unique_ptr<PendingExchange>> pending_;  // by number
  std::string failure_;         // error of the mesh; "" while it works
  bool has_lost_peer_ = false;  // whether a connection has failed
};

}  // namespace tf_adasum
