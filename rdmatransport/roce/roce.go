// Package roce configures RoCE (RDMA over Converged Ethernet) on a device of package rdmatransport,
// and documents the supported features. Work requests, queue pairs and completions are those of
// package verbs. For programs that parse packets, package wire has RoCE's headers, and package mad
// the messages of its connection management.
//
// A device supports RoCEv2 (IBTA annex A17: UDP port 4791 over IPv4 and IPv6) and RoCE v1 (annex
// A16: EtherType 0x8915) without any configuration. A program passes a configuration other than the
// default when it opens the device:
//
//	dev, err := rdmatransport.Open(host, &rdmatransport.Config{RoCE: roce.Config{DCQCN: &roce.DCQCN{}}})
//
// # Supported features
//
//	QP type  operations
//	RC       SEND, WRITE, both with immediate data; SEND with Invalidate, READ, 64-bit atomics, FLUSH, ATOMIC WRITE
//	XRC      the same, to shared receive queues of an XRC domain
//	UC       SEND and WRITE, both with immediate data
//	UD       SEND, also with immediate data, to a host or to a multicast group
//
// Connected QPs can bind and invalidate memory windows, and every QP may have a rate limit
// (verbs.QPAttr.RateLimit). QPs are connected by rdma_cm (package rdmacm, RoCEv2 only), or manually
// with verbs.QP.Modify. Peers may be hardware, Linux's rxe, or this package. Two devices of this
// package retransmit lost packets one by one if both enable it ([Config.SelectiveRepeat]). Messages
// between two hosts of one process on a switch of package pipe are copied without packets.
//
// The source GID determines the version. The GIDs of a port from index 0 on are RoCEv2's. Those
// from [V1Index] on are the same addresses for RoCE v1, which needs a host with an Ethernet link,
// such as one of package netstack. The path MTU, 256 to 4096, is limited by the link's MTU less 88
// bytes.
//
// # Limits
//
// A message has up to 1 GiB. A QP has up to 128 outstanding READs and atomics in each direction. A
// retransmission timeout below 4 ms (verbs.QPAttr.Timeout 1 to 9) counts as 4 ms. There is only the
// default partition (P_Key 0xffff), and no automatic path migration.
//
// # Monitoring
//
// The documentation of package rdmatransport lists the counters. rdmatransport.Config.Trace is
// a function to be called for each loss, timeout and change of state.
package roce

import "time"

// V1Index is the index of the first RoCE v1 GID in a port's GID table: entry V1Index+i has the
// address of entry i, which is RoCEv2's.
const V1Index = 128

// Config configures the handling of losses and congestion on a device's connections. The zero
// Config is the default.
type Config struct {
	// SelectiveRepeat makes the device's reliable connections retransmit only lost packets, if the
	// peer is a device of this package with SelectiveRepeat too. Such devices recognize each other
	// by a mark in reserved bits of the BTH, which senders must leave zero according to the IBTA.
	// Devices that monitor or test packets may object to it; receivers do not. Without it, and with
	// all other peers, everything from a lost packet on is retransmitted (go-back-N, IBTA Vol 1
	// §9.7), and reserved bits are zero.
	SelectiveRepeat bool
	// Window is the largest number of payload bytes that a reliable connection has in flight: a
	// power of two, from 128 KiB to 16 MiB; 0 is 512 KiB. To use a path in full, it must be at
	// least the bandwidth-delay product: 12.5 MB for 10 Gbit/s and 10 ms. With SelectiveRepeat, up
	// to 64 connections at a time keep packets after a missing one. That takes a few windows of
	// memory for each of them.
	Window int
	// DCQCN enables congestion control for connected QPs over RoCEv2. Packets allow switches to
	// mark them (ECT(0)), received marked packets are answered by congestion notification packets
	// (CNPs), and a CNP slows its connection down. &DCQCN{} has the default parameters. With nil,
	// no CNPs are sent, and received ones are ignored.
	DCQCN *DCQCN
	// ByDelay makes each reliable connection control its window by the delay of its packets, and
	// share queues fairly with others that do. It is for long paths, on which DCQCN reacts late to
	// the marks of switches. &ByDelay{} has the default parameters. Nil disables it.
	ByDelay *ByDelay
	// TrimmedDSCP is for networks whose switches trim packets: they cut a packet for which they have
	// no room to its headers, and give it this DSCP, in place of dropping it. The receiver tells the
	// sender at once which packet is missing, without a gap or a timeout. It takes a packet that has
	// lost its end, or whose ICRC is wrong, for a trimmed one if it has the DSCP. As nothing protects
	// such a packet, it is only a hint: it causes an answer, or a READ to be repeated. With DCQCN it
	// counts as marked. With SelectiveRepeat on both sides, one packet is retransmitted for each
	// trimmed one. No other packets may have this DSCP. The kernel's sockets pass on no packets whose
	// lengths say that the end is missing, so there the switches must set the lengths. 0 is none.
	TrimmedDSCP uint8
	// StrictICRC is for network stacks that do not see IP headers, such as the kernel's sockets. It
	// refuses every IPv4 packet with an identification other than 0 to 63, the values of hosts with
	// sockets. Without it, the identification is computed from the ICRC, which costs 8 to 16 of the
	// ICRC's 32 bits. With it, packets of Linux's rxe are refused, as rxe counts identifications
	// up.
	StrictICRC bool
	// RxeFlush is for peers that are Linux's rxe (seen in 6.12 and 7.2; 6.1 has no FLUSH). rxe
	// computes the ICRC of a FLUSH on an RC QP in a way of its own (wire.RxeFlushICRC), when it sends
	// one and when it checks one. With RxeFlush, this device does the same, in both directions, and
	// drops each RC FLUSH with the ICRC of the standard: to accept both would double the number of
	// damaged packets that pass. So peers that exchange FLUSHes with the device must be rxes, or
	// devices of this package with RxeFlush. Everything else is unchanged. Without it, an rxe's FLUSH
	// is dropped, and so are this device's by the rxe, until retries are exhausted.
	RxeFlush bool
}

// ByDelay has the parameters of congestion control by delay.
type ByDelay struct {
	// Queued is the number of packets that a connection keeps queued on its path, up to 16384;
	// 0 is 2.
	Queued int
}

// DCQCN has the parameters of congestion control (Zhu et al., Congestion Control for Large-Scale
// RDMA Deployments, SIGCOMM 2015), with mlx5's names. Rates are in bits per second. A zero
// parameter has its default, given at the end of its line.
//
// The defaults are those of hardware, except for times of a few microseconds, which software cannot
// keep. For those, the publication's values are used.
type DCQCN struct {
	RPGMaxRate   int64         // initial and largest rate of a connection; 40 Gbit/s, the port's
	RPGMinRate   int64         // smallest rate; 1 Mbit/s
	RPGAIRate    int64         // step of an additive increase; 5 Mbit/s
	RPGHAIRate   int64         // step of a hyper increase; 50 Mbit/s
	RPGTimeReset time.Duration // time between two increases; 300 µs
	// Bytes between two increases, counted separately from those by time; 32767.
	RPGByteReset int
	RPGThreshold int // increases of each kind in fast recovery; 1
	RPGGD        int // a CNP reduces the rate by alpha/2^RPGGD, alpha in units of 1/1024; 11
	RPGMinDecFac int // smallest share of the rate, in percent, that remains after a CNP; 50

	// Weight of the last DCETCPRTT in alpha, in units of 1/1024; 4.
	DCETCPG                 int
	DCETCPRTT               time.Duration // time without a CNP after which alpha decreases; 55 µs
	RateReduceMonitorPeriod time.Duration // smallest time between two decreases; 50 µs
	InitialAlphaValue       int           // alpha at the first CNP, in units of 1/1024; 1023
	RateToSetOnFirstCNP     int64         // upper bound of the rate after the first CNP; none

	CNPDSCP            uint8         // DSCP of CNPs; 48
	CNP802PPrio        uint8         // priority of CNPs in a VLAN, 1 to 7; 6
	MinTimeBetweenCNPs time.Duration // smallest time between two CNPs of a connection; 50 µs
}
