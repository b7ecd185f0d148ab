// Package kernel is a [stack.Network] on the machine's own UDP and TCP sockets: RoCEv2 and iWARP
// without privileges, on Linux, macOS, the BSDs and Windows. A program opens the host, and an RDMA
// device on it:
//
//	host, err := kernel.New(nil) // default interface; or New(&kernel.Config{Addrs: []string{"10.0.0.1"}})
//	dev, err := rdmatransport.Open(host, nil)
//
// The host has one interface of the machine, and all or some of its addresses. As in other stacks,
// the first GID is the link-local IPv6 address. If the host has none, the first GID is the host's
// first other address, which also has index 1. On Linux the link's state, MTU and addresses follow
// netlink. Other systems read them once.
//
// # Requirements
//
// The host needs UDP port 4791 of each of its addresses. Only one process at a time can have that
// port, unless the processes share it: see [Sharing]. While Linux's rxe is loaded, it occupies the
// port of all addresses.
//
// # Limitations
//
// Raw packet QPs need whole Ethernet frames, which need privileges: Frames returns nil. Paths of
// RoCE v1, which has no UDP, fail with an error that wraps [errors.ErrUnsupported]. On systems
// other than Linux, joining a multicast group fails in the same way. The priority of packets and
// IPv6's flow label are not set. Data between two hosts of one process passes their sockets:
// LocalNIC is always nil. On systems other than Linux, each datagram takes a system call and has
// the system's traffic class and hop limit.
//
// # The IP identification
//
// The ICRC covers the IPv4 identification, which a socket can neither set nor read.
//
// Sending: Linux uses 0 for each datagram of an unconnected socket that must not fragment
// (IP_PMTUDISC_DO), and 0, 1, 2, … for the segments of one superframe. FreeBSD and macOS use 0 as
// well. The ICRC is computed over these values.
//
// Receiving: [stack.Datagram].IDGuessed is set, and the identification in the header counts from 0
// in each superframe. If a packet's ICRC is valid for that, as with packets of this package, the
// check is complete. Linux's rxe counts identifications for each destination. In this case the RoCE
// engine computes the identification from the ICRC (wire.SolveID). It accepts the result if it is
// near the peer's last identification. The last identification advances only when a
// packet's ICRC, addresses, QP number and PSN are all valid. IPv6 has no identification.
package kernel

// Implementation notes.
//
// Sockets. Each of the host's addresses has one UDP socket on port 4791 for receiving RoCE packets.
// It also has up to eight sockets on other ports for sending, which are opened when paths need
// them. The requested source port selects one of these for a path. No socket is connected, because
// the kernel gives connected sockets other IP identifications (see above). A datagram arrives on
// the socket of its destination address, so the destination need not be queried. Streams are TCP
// sockets.
//
// Each multicast group has a socket of its own, bound to the group and the port: any number of
// processes may be in one group.
//
// Reading. A goroutine for each address waits for its socket, reads up to eight superframes with
// one recvmmsg, and passes them to the receiver until there are no more. NIC.Poll does the same
// without waiting, on the goroutine of its caller; the reader then pauses for a millisecond. A
// stream is read by the goroutine that waits for it, into a buffer that is held only while it has
// data. With GOMAXPROCS 1, pollers yield to that goroutine (idle.Yielder).
//
// Paths and superframes. A sender collects datagrams in its buffer. Datagrams of one path and one
// size form one superframe, which the kernel cuts (UDP_SEGMENT). Several superframes of one socket
// leave with one sendmmsg. MSG_ZEROCOPY does not pay between processes of one machine. The kernel
// copies the data anyway between veth or lo and the other socket, and plain system calls with it
// reach 0.43 to 0.66 of the throughput. A superframe that the kernel has joined (UDP_GRO), or has
// not cut, is received as one. The host probes the kernel's abilities when it is created. Traffic
// class and hop limit are control messages. Systems other than Linux send and receive one datagram
// per call, with the system's traffic class and hop limit.
//
// Small pieces of a stream are filled into a buffer and written from there at once. Data that the
// kernel does not take is queued, up to a limit. A goroutine writes it, and runs only while the
// queue has data.
