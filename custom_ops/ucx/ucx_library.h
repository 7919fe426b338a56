// Opens UCX at run time. The compiled op does not link to UCX, so it also loads if UCX is not
// installed.
//
// The build needs only the headers of UCX. The functions and fields that are used here exist in UCX
// 1.11 and later, and the binary interface of libucp.so.0 has not changed since.
#pragma once

#include <ucp/api/ucp.h>

#include <string>

namespace tf_adasum {

// The functions of UCX, with their names without the prefix.
struct UcxLibrary {
  decltype(&ucp_get_version_string) get_version_string;
  decltype(&ucp_init_version) init_version;
  decltype(&ucp_cleanup) cleanup;
  decltype(&ucp_config_read) config_read;
  decltype(&ucp_config_modify) config_modify;
  decltype(&ucp_config_release) config_release;
  decltype(&ucp_worker_create) worker_create;
  decltype(&ucp_worker_destroy) worker_destroy;
  decltype(&ucp_worker_get_efd) worker_get_efd;
  decltype(&ucp_worker_get_address) worker_get_address;
  decltype(&ucp_worker_release_address) worker_release_address;
  decltype(&ucp_worker_progress) worker_progress;
  decltype(&ucp_worker_arm) worker_arm;
  decltype(&ucp_ep_create) ep_create;
  decltype(&ucp_tag_send_nbx) tag_send_nbx;
  decltype(&ucp_tag_recv_nbx) tag_recv_nbx;
  decltype(&ucp_request_free) request_free;
  decltype(&ucs_status_string) status_string;
};

// Opens a library such as "libucp.so.0", and keeps it open. If this is not possible, returns null
// and sets `failure` to the reason.
const UcxLibrary* OpenUcx(const std::string& path, std::string* failure);

}  // namespace tf_adasum
