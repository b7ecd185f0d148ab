// Package vnet moves frames through a file descriptor that puts a virtio-net header before each, a TAP with
// IFF_VNET_HDR or a packet socket with PACKET_VNET_HDR, or none, a plain TAP. It has something to offer on Linux only.
package vnet
