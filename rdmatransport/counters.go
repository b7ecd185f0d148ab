package rdmatransport

import "maps"

// PortCounters is a snapshot of what has passed a port as RoCE packets, by the names of the counters that InfiniBand's
// ports have (/sys/class/infiniband/*/ports/*/counters); none of messages that go without packets, or loop back.
//
//	port_xmit_data, port_rcv_data        words of four bytes, of whole Ethernet frames without FCS
//	port_xmit_packets, port_rcv_packets  packets, of which
//	unicast_…_packets                    to one host
//	multicast_…_packets                  to a group
//	port_rcv_errors                      packets with a wrong length, checksum or source address
//	port_xmit_discards                   packets that the link refused, or that no neighbour was found for
func (p *Provider) PortCounters(port uint8) (map[string]uint64, error) {
	nic, err := p.nic(port)
	if err != nil {
		return nil, err
	}
	c := nic.Counters()
	return map[string]uint64{
		"port_xmit_data":         c.Sent.Bytes / 4,
		"port_rcv_data":          c.Received.Bytes / 4,
		"port_xmit_packets":      c.Sent.Packets,
		"port_rcv_packets":       c.Received.Packets,
		"unicast_xmit_packets":   c.Sent.Packets - c.Sent.Multicast,
		"unicast_rcv_packets":    c.Received.Packets - c.Received.Multicast,
		"multicast_xmit_packets": c.Sent.Multicast,
		"multicast_rcv_packets":  c.Received.Multicast,
		"port_rcv_errors":        c.RxMalformed,
		"port_xmit_discards":     c.TxErrors + c.TxNoRoute,
	}, nil
}

// Counters is a snapshot of the device's counters since it was opened, by name. Those of rxe's hw_counters (`rdma statistic
// show`) count what rxe's do:
//
//	sent_pkts, rcvd_pkts        packets of all QPs, the connection manager's QP 1 among them; received ones that are sound
//	                            and for a QP that takes them
//	duplicate_request           request packets that had come before
//	out_of_seq_request          gaps in the sequence of request packets
//	send_rnr_err, rcvd_rnr_err  RNR NAKs
//	rcvd_seq_err                sequence NAKs
//	ack_deferred                acknowledgements that had to wait: none ever
//	completer_retry_err         times that a QP went back, for a NAK or a timeout, but not for an RNR NAK
//	retry_exceeded_err          QPs that failed as they had gone back too often,
//	retry_rnr_exceeded_err      or for too many RNR NAKs
//	send_err                    packets that the link could not take
//	link_downed                 times that a port lost its link
//	rdma_sends                  SENDs that completed well (rxe: or not)
//	rdma_recvs                  receive requests that completed well
//
// Those of mlx5's:
//
//	np_ecn_marked_roce_packets  packets that came with Congestion Experienced
//	np_cnp_sent                 congestion notification packets sent,
//	rp_cnp_handled              received and heeded,
//	rp_cnp_ignored              or received without congestion control
//	out_of_buffer               raw frames that found no receive request
//
// Those of RoCE that no other device has:
//
//	direct_msgs          messages that went without packets
//	selective_repeats    packets, of READs their requests, that were repeated one by one
//	tail_probes          packets repeated to learn whether they had arrived
//	suspect_requests     request packets dropped because they, or others that contradict them, are not the peer's
//	malformed_packets, icrc_errors, unknown_qp, misdirected_packets, bad_pkey, qkey_viol
//	                     packets dropped: not parseable, wrong ICRC, no such QP, not in that state or from that address,
//	                     wrong P_Key or Q_Key
//	no_recv_dropped,     unreliable messages that found no receive request,
//	too_long_dropped     or one that was too short
//
// cm_… are messages of the connection manager, in the manner of /sys/class/infiniband_cm; iwarp_terminates_… Terminate
// messages, iwarp_crc_errors FPDUs, iwarp_direct_msgs messages, the other iwarp_… connections; raw_… Ethernet frames. The
// sums of PortCounters are there too.
func (p *Provider) Counters() map[string]uint64 {
	all := p.roce.Snapshot()
	all["link_downed"] = p.linkDowned.Load()
	for i := range p.nics {
		port, _ := p.PortCounters(uint8(i + 1)) // it is there
		for name, n := range port {
			all[name] += n
		}
	}
	maps.Copy(all, p.cm.Counters.Snapshot())
	maps.Copy(all, p.iwarp.Snapshot())
	maps.Copy(all, p.raw.Snapshot())
	return all
}
