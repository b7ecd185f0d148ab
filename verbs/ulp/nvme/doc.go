// Package nvme has the structures of NVMe over Fabrics with the RDMA transport: capsules with
// commands and completions, SGLs, the private data of connections, and the data of Fabrics, Admin
// and I/O commands. A target and a host use the same structures. Package target is a target, and
// package host a host.
//
// All numbers on the wire are in little-endian order. A parser checks each length before it reads.
// Its errors wrap EPROTO. Append and the parser of a structure are inverses, except for reserved
// bytes, which Append sets to zero and parsers ignore.
//
// Sources are NVM Express over Fabrics 1.1 ("NVMe-oF") and the NVM Express Base Specification 1.4
// ("NVMe").
//
// The API of this package and of the packages below it is not promised yet: a patch version may
// change it.
package nvme
