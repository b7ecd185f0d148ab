package fault

import (
	"maps"
	"slices"
	"strings"
	"syscall"
)

// errnos are the errnos that a rule may name.
var errnos = map[string]syscall.Errno{
	"EACCES": syscall.EACCES, "EADDRINUSE": syscall.EADDRINUSE, "EADDRNOTAVAIL": syscall.EADDRNOTAVAIL, "EAFNOSUPPORT": syscall.EAFNOSUPPORT,
	"EAGAIN": syscall.EAGAIN, "EBUSY": syscall.EBUSY, "ECONNREFUSED": syscall.ECONNREFUSED, "ECONNRESET": syscall.ECONNRESET,
	"EFAULT": syscall.EFAULT, "EHOSTUNREACH": syscall.EHOSTUNREACH, "EINTR": syscall.EINTR, "EINVAL": syscall.EINVAL, "EIO": syscall.EIO,
	"EISCONN": syscall.EISCONN, "ENETUNREACH": syscall.ENETUNREACH, "ENODEV": syscall.ENODEV, "ENXIO": syscall.ENXIO,
	"ENOENT": syscall.ENOENT, "ENOMEM": syscall.ENOMEM, "ENOSPC": syscall.ENOSPC, "ENOSYS": syscall.ENOSYS, "ENOTCONN": syscall.ENOTCONN,
	"EOPNOTSUPP": syscall.EOPNOTSUPP, "EOVERFLOW": syscall.EOVERFLOW, "EPERM": syscall.EPERM, "ETIMEDOUT": syscall.ETIMEDOUT,
}

// The errnos of groups of calls, the one that is most common on hardware first. EIO is that of a
// removed device.
const (
	creates  = "ENOMEM EAGAIN EFAULT EINVAL EIO ENODEV ENOENT ENOSPC EOPNOTSUPP EPERM" // ib_uverbs and the drivers
	destroys = "EBUSY EINVAL EIO ENOENT"
	changes  = "EINVAL EIO ENOMEM EOPNOTSUPP EPERM"
	queries  = "EIO EINVAL ENOMEM EOPNOTSUPP"
	posts    = "ENOMEM EINVAL EFAULT" // ibv_post_send(3)
	cmIDs    = "ENOMEM EINVAL EIO ENODEV EPERM"
	cmAddrs  = "ENODEV EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EHOSTUNREACH EINVAL EIO ENETUNREACH ENOMEM ETIMEDOUT EACCES"
	cmConns  = "EINVAL ECONNREFUSED ECONNRESET EIO EISCONN ENODEV ENOMEM ENOTCONN ETIMEDOUT"
)

// calls has the calls that a rule may name, and their errnos. Calls that only read a descriptor,
// such as ibv_get_cq_event, are not among them: no device makes them fail. Functions without a
// result, such as rdma_destroy_qp, are not either.
var calls = map[string]string{
	"alloc_mw": creates, "alloc_null_mr": creates, "alloc_pd": creates, "attach_mcast": changes, "bind_mw": posts,
	"close_xrcd": destroys, "create_ah": "ENOMEM EHOSTUNREACH EINVAL EIO ENETUNREACH ETIMEDOUT", "create_comp_channel": creates,
	"create_cq": creates, "create_flow": creates, "create_qp": creates, "create_srq": creates, "dealloc_mw": destroys,
	"dealloc_pd": destroys, "dereg_mr": destroys, "destroy_ah": destroys, "destroy_comp_channel": destroys, "destroy_cq": destroys,
	"destroy_flow": destroys, "destroy_qp": destroys, "destroy_srq": destroys, "detach_mcast": changes, "modify_cq": changes,
	"modify_qp":  "EINVAL EBUSY EHOSTUNREACH EIO ENETUNREACH ENOMEM EOPNOTSUPP EPERM ETIMEDOUT", // ETIMEDOUT: the peer's MAC is not found
	"modify_srq": changes, "open_device": creates + " ENXIO", "open_qp": creates, "open_xrcd": creates, "poll_cq": "EIO EINVAL EOVERFLOW",
	"post_recv": posts, "post_send": posts, "post_srq_recv": posts, "query_gid": queries,
	"query_gid_table": queries, "query_pkey": queries, "query_port": queries, "query_qp": queries, "query_srq": queries, "reg_mr": creates,
	"req_notify_cq": "EINVAL EIO", "rereg_mr": creates + " EBUSY", "resize_cq": creates + " ENOSYS",
	"rdma_accept": cmConns, "rdma_bind_addr": cmAddrs, "rdma_connect": cmConns, "rdma_create_event_channel": cmIDs,
	"rdma_create_id": cmIDs, "rdma_create_qp": creates, "rdma_create_srq": creates, "rdma_destroy_id": destroys, "rdma_disconnect": cmConns,
	"rdma_establish": cmConns, "rdma_init_qp_attr": cmConns, "rdma_join_multicast": cmAddrs, "rdma_leave_multicast": cmAddrs,
	"rdma_listen": cmAddrs, "rdma_migrate_id": cmIDs, "rdma_notify": cmConns, "rdma_reject": cmConns, "rdma_resolve_addr": cmAddrs,
	"rdma_resolve_route": cmAddrs, "rdma_set_option": cmIDs + " ENOSYS",
}

// Calls returns the names of the calls that a rule may name, sorted.
func Calls() []string { return slices.Sorted(maps.Keys(calls)) }

// Errnos returns the names of the errnos with which a call may fail, the most common one first; nil
// for an unknown call. modify_qp may be followed by a colon and a state.
func Errnos(call string) []string {
	name, _, _ := strings.Cut(call, ":")
	return strings.Fields(calls[name])
}
