// Package vnet sends and receives frames through file descriptors. They belong to a TAP with
// IFF_VNET_HDR or a packet socket with PACKET_VNET_HDR, where a virtio-net header precedes each
// frame, or to a TAP without these headers. The package is empty on systems other than Linux.
package vnet
