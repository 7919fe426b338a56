#include "mesh.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

namespace tf_adasum {
namespace {

// If the thread finds no work for this time, it sleeps. With a shorter time, every small message
// would cost a wake-up. The thread yields between two polls, so that arithmetic on the same core
// does not have to wait. An exchange of 1 MB between two workers took 2.4 ms with these settings,
// 3.3 ms without yielding, and 3.4 ms with a polling time of 20 us.
constexpr std::chrono::microseconds kPolling(200);

// When a worker is lost, connections to other workers may fail at the same moment. So the mesh
// waits for the failure detector, which finds the lost worker and calls `Abort`. After this time,
// if an exchange is still pending, the mesh ends all exchanges with the error of the connection.
constexpr std::chrono::seconds kPeerLostTimeout(5);

// The longest time that the thread sleeps without checking for work.
constexpr int kLongestSleepMs = 1000;

// The version of UCX's API that this code requests. It uses nothing newer.
constexpr unsigned kApiMajor = 1, kApiMinor = 11;

}  // namespace

std::unique_ptr<Mesh> Mesh::Create(const UcxLibrary& ucx, const std::string& transports,
                                   const std::string& device, std::string* failure) {
  std::unique_ptr<Mesh> mesh(new Mesh(ucx));
  if (!mesh->Init(transports, device, failure)) return nullptr;
  return mesh;
}

bool Mesh::Init(const std::string& transports, const std::string& device, std::string* failure) {
  const auto fails = [&](ucs_status_t status, const char* what) {
    if (status != UCS_OK) *failure = std::string(what) + ": " + ucx_.status_string(status);
    return status != UCS_OK;
  };
  ucp_config_t* config = nullptr;
  if (fails(ucx_.config_read(nullptr, nullptr, &config), "UCX cannot read its settings")) {
    return false;
  }
  // The sender writes large messages into the receiver's memory (put_zcopy). By default in UCX
  // 1.22, the receiver reads them, which takes more than twice as long over TCP (100 MB between two
  // workers: 260 ms instead of 108 ms).
  const std::pair<const char*, const char*> settings[] = {
      {"TLS", transports.c_str()}, {"NET_DEVICES", device.c_str()}, {"RNDV_SCHEME", "put_zcopy"}};
  ucs_status_t status = UCS_OK;
  for (const auto& [name, value] : settings) {
    const bool is_users = std::getenv((std::string("UCX_") + name).c_str()) != nullptr;
    if (status == UCS_OK && !is_users) status = ucx_.config_modify(config, name, value);
  }
  if (status == UCS_OK) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    status = ucx_.init_version(kApiMajor, kApiMinor, &params, config, &context_);
  }
  ucx_.config_release(config);
  if (fails(status, "UCX cannot start")) return false;

  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // This thread creates the worker; later only the thread of the mesh uses it.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (fails(ucx_.worker_create(context_, &params, &worker_), "UCX cannot make a worker") ||
      fails(ucx_.worker_get_efd(worker_, &ucx_event_fd_),
            "UCX cannot create an event file descriptor")) {
    return false;
  }
  ucp_address_t* address;
  size_t length;
  if (fails(ucx_.worker_get_address(worker_, &address, &length),
            "UCX cannot get the address of its worker")) {
    return false;
  }
  address_.assign(reinterpret_cast<const char*>(address), length);
  ucx_.worker_release_address(worker_, address);
  wakeup_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wakeup_fd_ < 0) *failure = "no file descriptor is free (see ulimit -n)";
  return wakeup_fd_ >= 0;
}

std::string Mesh::Connect(const std::vector<std::string>& addresses) {
  peers_.resize(addresses.size());  // never resized again, because UCX keeps pointers to the peers
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    Peer& peer = peers_[rank];
    peer.mesh = this;
    peer.worker = rank;
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                        UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(addresses[rank].data());
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler.cb = OnPeerError;
    params.err_handler.arg = &peer;
    const ucs_status_t status = ucx_.ep_create(worker_, &params, &peer.endpoint);
    if (status != UCS_OK) {
      return "UCX cannot reach the worker of rank " + std::to_string(rank) + ": " +
             ucx_.status_string(status);
    }
  }
  thread_ = std::thread([this] { Loop(); });
  return "";
}

Mesh::~Mesh() {
  Stop();
  // The endpoints of a mesh that was connected exist until the process exits. A mesh that was never
  // connected has none.
  if (peers_.empty()) Destroy();
  if (wakeup_fd_ >= 0) close(wakeup_fd_);
}

void Mesh::Destroy() {
  if (worker_ != nullptr) ucx_.worker_destroy(worker_);
  if (context_ != nullptr) ucx_.cleanup(context_);
  worker_ = nullptr;
  context_ = nullptr;
}

uint64_t Mesh::Start(Exchange exchange) {
  const uint64_t number = exchanges_++;
  // A std::function must be copyable; the shared pointer avoids copies of the exchange.
  auto held = std::make_shared<Exchange>(std::move(exchange));
  Post([this, number, held] { Begin(number, std::move(*held)); });
  return number;
}

void Mesh::StopWaiting(uint64_t number, const std::string& failure) {
  Post([this, number, failure] {
    const auto found = pending_.find(number);
    if (found == pending_.end() || found->second->is_done) return;
    found->second->is_done = true;
    found->second->exchange.done(failure);
  });
}

void Mesh::Abort(const std::string& failure) {
  Post([this, failure] { FailAll(failure); });
}

void Mesh::Stop() {
  if (!thread_.joinable()) return;
  stops_ = true;
  Post([] {});
  thread_.join();
}

void Mesh::Close() {
  Stop();
  if (failure_.empty() && pending_.empty()) Destroy();
}

void Mesh::Post(std::function<void()> closure) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    posted_.push_back(std::move(closure));
  }
  if (!sleeps_) return;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wakeup_fd_, &one, sizeof(one));
}

// ---- on the thread of the mesh ------------------------------------------------------------------

void Mesh::Loop() {
  prctl(PR_SET_NAME, "tf_adasum ucx");
  sigset_t all;  // the program's own threads handle signals
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  auto busy_at = Clock::now();
  while (!stops_) {
    bool is_busy = RunPosted();
    while (failure_.empty() && ucx_.worker_progress(worker_) != 0) is_busy = true;
    const auto now = Clock::now();
    if (has_lost_peer_) FailIfPeerIsLost();
    if (is_busy) {
      busy_at = now;
    } else if (now - busy_at >= kPolling) {
      Sleep();
      busy_at = Clock::now();
    } else {
      std::this_thread::yield();
    }
  }
}

bool Mesh::RunPosted() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    running_.swap(posted_);
  }
  if (running_.empty()) return false;
  for (auto& closure : running_) closure();
  running_.clear();
  return true;
}

void Mesh::Sleep() {
  // Set before `posted_` is checked: a thread that posts after the check will wake this thread.
  sleeps_ = true;
  bool is_quiet;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_quiet = posted_.empty();
  }
  const bool works = failure_.empty();
  if (is_quiet && (!works || ucx_.worker_arm(worker_) == UCS_OK)) {
    pollfd awaited[] = {{wakeup_fd_, POLLIN, 0}, {ucx_event_fd_, POLLIN, 0}};
    poll(awaited, works ? 2 : 1, kLongestSleepMs);
  }
  sleeps_ = false;
  uint64_t count;
  [[maybe_unused]] const ssize_t drained = read(wakeup_fd_, &count, sizeof(count));
}

void Mesh::Begin(uint64_t number, Exchange exchange) {
  if (!failure_.empty()) return exchange.done(failure_);
  auto owned = std::make_unique<PendingExchange>();
  PendingExchange* pending = owned.get();
  pending->mesh = this;
  pending->number = number;
  pending->exchange = std::move(exchange);
  const auto& messages = pending->exchange;
  for (const Message& each : messages.receives)
    pending->transfers.push_back({pending, &each, true});
  for (const Message& each : messages.sends) pending->transfers.push_back({pending, &each, false});
  // One more for this function, so that `pending` exists until all transfers are launched.
  pending->transfers_left = pending->transfers.size() + 1;
  pending_[number] = std::move(owned);
  for (Transfer& transfer : pending->transfers) Launch(&transfer);
  Transfer none{pending, nullptr, false};
  Finish(&none, "");
}

void Mesh::Launch(Transfer* transfer) {
  const Message& message = *transfer->message;
  const Peer& peer = peers_[message.worker];
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = transfer;
  void* request;
  ucp_tag_recv_info_t info{};
  info.length = message.bytes;
  if (transfer->is_receive) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_RECV_INFO;
    param.cb.recv = OnReceived;
    param.recv_info.tag_info = &info;  // set if the receive completes immediately
    request =
        ucx_.tag_recv_nbx(worker_, message.data, message.bytes, message.tag, ~uint64_t{0}, &param);
  } else if (!peer.failure.empty()) {
    return Finish(transfer, peer.failure);
  } else {
    param.cb.send = OnSent;
    request = ucx_.tag_send_nbx(peer.endpoint, message.data, message.bytes, message.tag, &param);
  }
  if (UCS_PTR_IS_PTR(request)) return;  // a callback calls `Finish`, or has already called it
  Finish(transfer, ErrorOf(*transfer, UCS_PTR_STATUS(request), info.length));
}

void Mesh::OnSent(void* request, ucs_status_t status, void* argument) {
  auto* transfer = static_cast<Transfer*>(argument);
  Mesh* mesh = transfer->pending->mesh;
  mesh->ucx_.request_free(request);
  mesh->Finish(transfer, mesh->ErrorOf(*transfer, status, transfer->message->bytes));
}

void Mesh::OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                      void* argument) {
  auto* transfer = static_cast<Transfer*>(argument);
  Mesh* mesh = transfer->pending->mesh;
  const size_t length = status == UCS_OK ? info->length : 0;
  mesh->ucx_.request_free(request);
  mesh->Finish(transfer, mesh->ErrorOf(*transfer, status, length));
}

std::string Mesh::ErrorOf(const Transfer& transfer, ucs_status_t status, size_t received) const {
  const Message& message = *transfer.message;
  if (status == UCS_OK && received == message.bytes) return "";
  const std::string worker = "the worker of rank " + std::to_string(message.worker);
  if (status == UCS_OK || status == UCS_ERR_MESSAGE_TRUNCATED) {
    // The first words are the same as in TensorFlow's own error for different sizes, by which
    // compat/tensorflow/broken_collectives.py detects the error.
    return "Collective instance " + std::to_string(message.tag) + " expected " +
           std::to_string(message.bytes) + " bytes from " + worker + ", but got " +
           (status == UCS_OK ? std::to_string(received) : "more");
  }
  return "UCX: " + std::string(ucx_.status_string(status)) + " (" + worker + ")";
}

void Mesh::Finish(Transfer* transfer, const std::string& failure) {
  PendingExchange* pending = transfer->pending;
  const bool is_last = --pending->transfers_left == 0;
  if (!pending->is_done && (is_last || !failure.empty())) {
    pending->is_done = true;
    pending->exchange.done(failure);
  }
  if (is_last) pending_.erase(pending->number);
}

void Mesh::OnPeerError(void* argument, ucp_ep_h, ucs_status_t status) {
  auto* peer = static_cast<Peer*>(argument);
  Mesh* mesh = peer->mesh;
  peer->failure = "UCX: " + std::string(mesh->ucx_.status_string(status)) +
                  " (the worker of rank " + std::to_string(peer->worker) + ")";
  peer->failed_at = Clock::now();
  mesh->has_lost_peer_ = true;
}

void Mesh::FailIfPeerIsLost() {
  const auto now = Clock::now();
  bool is_awaited = false;
  for (const auto& [number, pending] : pending_) is_awaited |= !pending->is_done;
  for (const Peer& peer : peers_) {
    const bool is_lost = !peer.failure.empty() && now - peer.failed_at > kPeerLostTimeout;
    if (is_lost && is_awaited) return FailAll(peer.failure);
  }
}

void Mesh::FailAll(const std::string& failure) {
  if (!failure_.empty()) return;
  failure_ = failure;
  for (const auto& [number, pending] : pending_) {
    if (pending->is_done) continue;
    pending->is_done = true;
    pending->exchange.done(failure);
  }
  // The exchanges stay in `pending_`, so their memory is not released.
}

}  // namespace tf_adasum
