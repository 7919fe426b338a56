// What Python asks of the meshes of this process, through ctypes; and the mesh that an op uses.
#pragma once

#include <cstdint>
#include <memory>

#include "mesh.h"

namespace tf_adasum {

// The mesh with a number, or null. A mesh stays to the end of the process.
Mesh* FindMesh(int number);

}  // namespace tf_adasum

// Texts are written to `text`, cut off at `capacity` bytes, the last of which is a zero.
extern "C" {

// Opens UCX. Returns 0 and its version in `text`, or -1 and why not.
int adasum_ucx_open(const char* path, char* text, int capacity);

// Makes a mesh in a child process, and closes it, unless this process has made one already: UCX may
// crash. Returns 0, or -1 and why a mesh cannot be made.
int adasum_ucx_rehearse(const char* transports, const char* device, char* text, int capacity);

// Makes a mesh, see Mesh::Create. Returns its number, or -1 and why not.
int adasum_ucx_create(const char* transports, const char* device, char* text, int capacity);

// Copies the address of a mesh, which has no zero at its end. Returns its length.
int adasum_ucx_address(int mesh, char* address, int capacity);

// Connects a mesh to `workers` workers: their addresses one after the other, of `lengths` bytes.
// Returns 0, or -1 and why not.
int adasum_ucx_connect(int mesh, int workers, const char* addresses, const int* lengths, char* text,
                       int capacity);

// Sends `bytes` bytes to each of the other workers, gets as many from each, checks them, and waits
// for it for at most `seconds`. All workers call it, in turn with the same `number`; before the
// first op. Returns 0 and how long it took in `took`, or -1 and what failed.
int adasum_ucx_try(int mesh, int rank, int workers, int number, int64_t bytes, double seconds,
                   double* took, char* text, int capacity);

// Closes a mesh that nobody uses any more, see Mesh::Close.
void adasum_ucx_close(int mesh);

// Ends all exchanges of all meshes, see Mesh::Abort.
void adasum_ucx_abort(const char* failure);

}  // extern "C"
