// Package vnet sends and receives frames through file descriptors: of a TAP with IFF_VNET_HDR or a packet socket with
// PACKET_VNET_HDR, where a virtio-net header precedes each frame, or of a TAP without these headers. It is empty on systems
// other than Linux.
package vnet
