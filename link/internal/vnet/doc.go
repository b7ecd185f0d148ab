// Package vnet moves frames through a file descriptor that puts a virtio-net header before each: a TAP with
// IFF_VNET_HDR, a packet socket with PACKET_VNET_HDR. It has something to offer on Linux only.
package vnet
