// Package roce configures RoCE (RDMA over Converged Ethernet) on a device of package rdmatransport,
// and says what the device does over it. Work requests, queue pairs and completions are those of
// package verbs; package wire has RoCE's headers, and package mad the messages of its connection
// management, for programs that read packets.
//
// A device speaks RoCEv2 (IBTA annex A17: UDP port 4791 over IPv4 and IPv6) and RoCE v1 (annex A16:
// EtherType 0x8915) without any configuration. A program that wants another than the default gives
// it where it opens the device:
//
//	dev, err := rdmatransport.Open(host, rdmatransport.RoCE(roce.Config{DCQCN: &roce.DCQCN{}}))
//
// # What is supported
//
//	QP type  operations
//	RC       SEND, WRITE, both with immediate data; SEND with Invalidate, READ, 64-bit atomics, FLUSH, ATOMIC WRITE
//	XRC      the same, to shared receive queues of an XRC domain
//	UC       SEND and WRITE, both with immediate data
//	UD       SEND, also with immediate data, to a host or to a multicast group
//
// Connected QPs can bind and invalidate memory windows, and every QP may have a rate limit
// (verbs.QPAttr.RateLimit). QPs are connected by rdma_cm (package rdmacm, RoCEv2 only), or by hand,
// as verbs.QP.Modify has it. Peers may be hardware, Linux's rxe, or this package; between two of
// this package lost packets are repeated one by one if both ask for it ([Config.SelectiveRepeat]).
// Messages between two hosts of one process, on one package pipe switch, are copied without
// packets.
//
// The source GID chooses the version: the GIDs of a port from index 0 on are RoCEv2's, those from
// [V1Index] on are the same addresses for RoCE v1, which needs a host with an Ethernet link, such
// as one of package netstack. The path MTU, 256 to 4096, is bounded by the link's MTU less 88
// bytes.
//
// # Limits
//
// A message has up to 1 GiB. A QP has up to 128 READs and atomics outstanding, in each direction. A
// retransmission timeout below 4 ms (verbs.QPAttr.Timeout 1 to 9) counts as 4 ms. There is one
// partition, the default one (P_Key 0xffff), and no automatic path migration.
//
// # Seeing what happens
//
// The documentation of package rdmatransport lists the counters. rdmatransport.Trace has a function
// called with each loss, timeout and change of state.
package roce

import "time"

// V1Index is the index in a port's GID table from which on the GIDs are RoCE v1's: entry V1Index+i
// has the address of entry i, which is RoCEv2's.
const V1Index = 128

// Config is how a device's connections deal with losses and with congestion. The zero Config is the
// default.
type Config struct {
	// SelectiveRepeat has the device's reliable connections repeat lost packets alone where the
	// peer is a device of this package that has SelectiveRepeat too. Such devices recognise each
	// other by a mark in reserved bits of the BTH, which the IBTA has senders leave zero: a device
	// that monitors or tests what is on the wire may object, a receiver does not. Without it, and
	// towards all other peers, everything from a lost packet on is repeated (go-back-N, IBTA Vol 1
	// §9.7), and reserved bits are zero.
	SelectiveRepeat bool
	// Window is how many bytes of payload a reliable connection has in flight at most: a power of
	// two, from 128 KiB to 16 MiB. Other numbers count as the power of two below, and 0 as 512 KiB.
	// To use a path in full it has to be the path's rate times its round trip: 12.5 MB for 10
	// Gbit/s and 10 ms. With SelectiveRepeat, each of up to 64 connections keeps up to two windows
	// of packets behind one that is missing: with 16 MiB, 2.2 GB in all.
	Window int
	// DCQCN turns congestion control on, for connected QPs over RoCEv2: packets say that switches
	// may mark them (ECT(0)), those that come marked are answered with congestion notification
	// packets (CNPs), and a CNP slows its connection down. &DCQCN{} has the default parameters. Nil
	// is off: CNPs are not sent, and those that come are ignored.
	DCQCN *DCQCN
	// ByDelay has each reliable connection find its window by the delay of its packets, and share
	// queues fairly with others that do. It is for long paths, where DCQCN, which acts on what
	// switches have marked, is late. &ByDelay{} has the default parameters. Nil is off.
	ByDelay *ByDelay
	// StrictICRC matters where the network stack does not see IP headers, as the kernel's sockets
	// do not: it refuses each IPv4 packet whose identification is not one that hosts on sockets
	// give, 0 to 63. Without it, the identification is found from the ICRC, which costs 8 to 16 of
	// the ICRC's 32 bits. Linux's rxe, whose packets are identified by a counter, is then refused.
	StrictICRC bool
}

// ByDelay is the parameters of congestion control by delay.
type ByDelay struct {
	// Queued is how many packets a connection keeps in the queues on its way: 2 if it is 0.
	Queued int
}

// DCQCN is the parameters of congestion control (Zhu et al., Congestion Control for Large-Scale
// RDMA Deployments, SIGCOMM 2015), by the names that mlx5 has for them. Rates are in bits a second.
// A parameter that is zero or negative has its default, which is given behind it.
//
// The defaults are those of hardware, except for times of a few microseconds, which software cannot
// keep: those are the publication's.
type DCQCN struct {
	RPGMaxRate   int64         // the rate that a connection begins with and never exceeds; 40 Gbit/s, the port's
	RPGMinRate   int64         // the rate that it never falls below; 1 Mbit/s
	RPGAIRate    int64         // how much an additive increase adds; 5 Mbit/s
	RPGHAIRate   int64         // how much a hyper increase adds; 50 Mbit/s
	RPGTimeReset time.Duration // time between two increases; 300 µs
	RPGByteReset int           // bytes between two increases, which are counted apart from those by time; 32767
	RPGThreshold int           // increases of each kind that are fast recovery; 1
	RPGGD        int           // a CNP takes alpha/2^RPGGD of the rate, alpha in units of 1/1024; 11
	RPGMinDecFac int           // the share of the rate, in per cent, that a CNP leaves at least; 50

	DCETCPG                 int           // weight of the last DCETCPRTT in alpha, in units of 1/1024; 4
	DCETCPRTT               time.Duration // time without a CNP after which alpha falls; 55 µs
	RateReduceMonitorPeriod time.Duration // least time between two decreases; 50 µs
	InitialAlphaValue       int           // alpha at the first CNP, in units of 1/1024; 1023
	RateToSetOnFirstCNP     int64         // an upper bound of the rate after the first CNP; none
	ClampTgtRate            bool          // each decrease sets the target of recovery to the rate before it, even if no increase came between

	CNPDSCP            uint8         // DSCP of CNPs; 48
	CNP802PPrio        uint8         // priority of CNPs in a VLAN, 1 to 7; 6
	MinTimeBetweenCNPs time.Duration // least time between two CNPs of a connection; 50 µs
}
