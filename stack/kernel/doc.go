// Package kernel is a [stack.Network] on the machine's own UDP and TCP sockets: RoCEv2 and iWARP without privileges, on Linux, macOS,
// the BSDs and Windows. A program opens the host, and an RDMA device on it:
//
//	host, err := kernel.New() // the first interface; or New(kernel.Interface("eth0")), New(kernel.Addr("10.0.0.1"))
//	dev, err := rdmatransport.Open(host)
//
// The host has one interface of the machine, and all of its addresses, or those that were asked for. As in other stacks the first
// GID belongs to the link-local IPv6 address; if the host has none, it belongs to the host's first other address, which has
// index 1 as well. The state of the link, its MTU and its addresses are those that netlink reports (on other systems than Linux,
// those at the beginning).
//
// # What it needs
//
// UDP port 4791 of each of its addresses, which one process at a time can have, unless they share it: see [Shared]. Linux's rxe,
// where there is one, has that port of all addresses.
//
// # What it does not do
//
// Raw packet QPs need whole Ethernet frames, and those need privileges: Frames returns nil. Paths of RoCE v1, which has no
// UDP, are errors that wrap [errors.ErrUnsupported], and so is joining a multicast group on other systems than Linux. The
// priority of packets, and IPv6's flow label, are not carried. Data between two hosts of a process goes through their sockets:
// Near is always nil. On systems other than Linux each datagram takes a system call, and has the system's traffic class and
// hop limit.
//
// # The IP identification
//
// The ICRC covers the IPv4 identification, which a socket neither chooses nor shows.
//
// What is sent: Linux gives 0 to each datagram of an unconnected socket that must not fragment (IP_PMTUDISC_DO), and 0, 1, 2, …
// to the segments of one superframe. FreeBSD and macOS give 0 as well. The ICRC is computed over that.
//
// What is received: [stack.Datagram].IDGuessed is set, and the identification in the header counts from 0 in each
// superframe. Where a packet's ICRC is right under that, as from another host of this package, it is checked in full. Linux's rxe
// counts for each destination. Then package roce solves the identification from the ICRC (wire.SolveID), and accepts it
// if it is near the last one of that peer (package ipid there), which moves only when the ICRC, the addresses, the QP number and
// the PSN of a packet were all right. IPv6 has no identification.
package kernel

// How it works.
//
// Sockets. Each of the host's addresses has one UDP socket on port 4791 for RoCE packets that come in, and up to eight on
// other ports, opened as paths need them, that they leave from. A path takes one of these by the source port that it was
// asked for. None is ever connected: the kernel gives connected sockets other IP identifications (see above). A datagram
// comes to the socket of the address that it is for, so that nothing has to be asked about its destination. Streams are TCP
// sockets.
//
// Each multicast group has a socket of its own, bound to the group and the port: any number of processes may be in one group.
//
// Who reads. A goroutine for each address waits for its socket, reads up to eight superframes with one recvmmsg, and hands
// them to the receiver, until there is no more. NIC.Poll does the same without waiting, on the goroutine of its caller; the
// reader then stays away for a millisecond. A stream is read by the goroutine that waits for it, into a buffer that is held
// only while there is something in it. Where Go has one processor, who polls gives way to that goroutine (giveway_linux.go).
//
// Paths and superframes. A sender gathers datagrams in its buffer. Those of one path and one size are one superframe, which
// the kernel cuts (UDP_SEGMENT); several superframes of one socket leave with one sendmmsg. MSG_ZEROCOPY is of no use between
// processes of one machine: the kernel copies the data all the same, on its way from veth or lo to the other socket, and bare
// system calls reach 0.43 to 0.66 of the throughput. Superframes that the kernel has
// put together (UDP_GRO), or has not cut because it is their destination itself, are received uncut. Whether the kernel can
// do this is asked when the host is made. Traffic class and hop limit are control messages. Systems other than Linux send
// and receive one datagram with each call, with the system's traffic class and hop limit.
//
// Small pieces of a stream are filled into a buffer and written from there at once. What the kernel does not take is kept,
// up to a bound, and written by a goroutine which runs only as long as there is something.
