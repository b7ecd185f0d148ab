// Package rdmatransport is SoftRNIC's provider of verbs: it opens an RDMA device on a host
// ([stack.Network]), such as one of package netstack. One device supports all wire protocols. Each
// queue pair selects one, RoCEv2 or iWARP, when it is created.
//
//	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.0.0.1/24"}}) // l is a link: a TAP device, an interface, or in memory
//	dev, err := rdmatransport.Open(host, nil)
//
// Everything else is done with the [verbs.Device] and with package rdmacm. The examples below are
// complete programs.
//
// # Counters
//
// [verbs.Device.PortCounters] has the names of Linux's ports in
// /sys/class/infiniband/*/ports/*/counters. It counts RoCE packets only, not messages that are
// moved without packets or loop back:
//
//	port_xmit_data, port_rcv_data        words of four bytes, of whole Ethernet frames without FCS
//	port_xmit_packets, port_rcv_packets  packets
//	unicast_…_packets                    those to one host
//	multicast_…_packets                  those to a group
//	port_rcv_errors                      packets with a wrong length, checksum or source address
//	port_xmit_discards                   packets that the link refused, or whose neighbour was not found
//
// [verbs.Device.HWCounters] has the sums of these over all ports, and the hw_counters of rxe (`rdma
// statistic show`):
//
//	sent_pkts, rcvd_pkts        packets of all QPs, including the connection manager's QP 1; received
//	                            ones only if they are valid and the QP accepts them
//	sent_bytes, rcvd_bytes      bytes of all packets that port_… counts, from the IP header on, as in
//	                            Linux 7.2
//	duplicate_request           request packets that were received before
//	out_of_seq_request          gaps in the sequence of request packets
//	send_rnr_err, rcvd_rnr_err  RNR NAKs
//	rcvd_seq_err                sequence NAKs
//	ack_deferred                acknowledgements received but handled later: only rxe has these; always 0
//	completer_retry_err         retransmissions from una on, after a NAK or a timeout, but not an RNR NAK
//	retry_exceeded_err          QPs that failed because of too many of these
//	retry_rnr_exceeded_err      QPs that failed because of too many RNR NAKs
//	send_err                    packets that the link could not take
//	link_downed                 times that a port lost its link
//	rdma_sends                  SENDs completed with success (rxe counts all)
//	rdma_recvs                  receive requests completed with success
//
// These have the names of mlx5's counters:
//
//	np_ecn_marked_roce_packets  packets received with the ECN mark Congestion Experienced
//	np_cnp_sent                 congestion notification packets (CNPs) sent
//	rp_cnp_handled              CNPs received that reduced the rate of a QP
//	rp_cnp_ignored              CNPs received by a device without congestion control
//	out_of_buffer               raw frames dropped for lack of a receive request
//
// No other device has these:
//
//	direct_msgs          RoCE messages copied from memory to memory, without packets
//	selective_repeats    packets (of READs, requests) retransmitted alone, by selective repeat
//	tail_probes          packets retransmitted as probes
//	trimmed_packets      packets that a switch has cut to their headers, and that caused an answer
//	suspect_requests     request packets dropped because they may be forged
//	malformed_packets    packets dropped because their headers do not parse
//	icrc_errors          packets dropped for a wrong ICRC, as after a NAT (which iWARP passes)
//	unknown_qp           packets dropped because the QP does not exist
//	misdirected_packets  packets dropped for a wrong source address, or in a state without reception
//	bad_pkey, qkey_viol  packets dropped for a wrong P_Key or Q_Key
//	icrc_id_solved       packets whose IPv4 identification was computed from the ICRC
//	injected_faults      what was made to fail on purpose: see package fault
//	no_recv_dropped      unreliable messages dropped for lack of a receive request
//	too_long_dropped     unreliable messages dropped because the receive request was too short
//	cm_…                 messages of the connection manager, named as in /sys/class/infiniband_cm
//	iwarp_terminates_…   Terminate messages
//	iwarp_crc_errors     FPDUs with a wrong CRC
//	iwarp_direct_msgs    iWARP messages copied from memory to memory
//	iwarp_xmit_bytes, iwarp_rcv_bytes  bytes of FPDUs, which port_… does not count
//	iwarp_…              (all others) connections
//	raw_…                Ethernet frames of raw packet QPs
package rdmatransport
