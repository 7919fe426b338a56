// The C interface to the meshes of this process, which Python calls through ctypes; and `FindMesh`,
// which ops call.
#pragma once

#include <cstdint>
#include <memory>

#include "mesh.h"

namespace tf_adasum {

// Returns the mesh with this number, or null. A mesh exists until the process exits.
Mesh* FindMesh(int number);

}  // namespace tf_adasum

// A function that returns -1 writes an error message to `text`. Texts are cut off at `capacity`
// bytes, including the terminating zero.
extern "C" {

// Opens UCX. Returns 0 and writes the version of UCX to `text`, or returns -1.
int adasum_ucx_open(const char* path, char* text, int capacity);

// Creates and destroys a mesh in a child process, because UCX may crash. Does nothing if this
// process has already created a mesh. Returns 0, or -1 if a mesh cannot be created.
int adasum_ucx_probe(const char* transports, const char* device, char* text, int capacity);

// Creates a mesh, see Mesh::Create. Returns the number of the mesh, or -1.
int adasum_ucx_create(const char* transports, const char* device, char* text, int capacity);

// Copies at most `capacity` bytes of the address of a mesh, without a terminating zero. Returns the
// length of the whole address.
int adasum_ucx_address(int mesh, char* address, int capacity);

// Connects a mesh to `workers` workers. `addresses` holds their addresses one after the other, in
// rank order, and `lengths` the length of each address in bytes. Returns 0 or -1.
int adasum_ucx_connect(int mesh, int workers, const char* addresses, const int* lengths, char* text,
                       int capacity);

// Sends `bytes` bytes to each of the other workers, receives as many from each, and checks the
// received bytes. Waits for at most `seconds`. All workers must call it before the first op uses
// the mesh, with the same `number`, and with a new number for each trial. Writes the duration in
// seconds to `took`. Returns 0 or -1.
int adasum_ucx_test_exchange(int mesh, int rank, int workers, int number, int64_t bytes,
                             double seconds, double* took, char* text, int capacity);

// Closes a mesh that is no longer used, see Mesh::Close.
void adasum_ucx_close(int mesh);

// Ends all exchanges of all meshes with an error, see Mesh::Abort.
void adasum_ucx_abort(const char* failure);

}  // extern "C"
