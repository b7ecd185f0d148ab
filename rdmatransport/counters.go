package rdmatransport

import "maps"

// PortCounters implements verbs.Provider.
func (p *provider) PortCounters(port uint8) (map[string]uint64, error) {
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

// HWCounters implements verbs.Provider.
func (p *provider) HWCounters() map[string]uint64 {
	all := p.roce.Snapshot()
	all["link_downed"] = p.linkDowned.Load()
	for i := range p.nics {
		port, _ := p.PortCounters(uint8(i + 1)) // the port exists
		for name, n := range port {
			all[name] += n
		}
	}
	maps.Copy(all, p.cm.Counters.Snapshot())
	maps.Copy(all, p.iwarp.Snapshot())
	maps.Copy(all, p.raw.Snapshot())
	return all
}
