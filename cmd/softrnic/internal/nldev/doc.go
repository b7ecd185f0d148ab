// Package nldev answers iproute2's command rdma, which asks the kernel about RDMA devices by
// netlink (NETLINK_RDMA). A preloaded library passes its messages here. Linux only.
package nldev
