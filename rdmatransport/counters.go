package rdmatransport

import (
	"maps"
	"sync"
)

// highest has the highest value of each counter that was returned. A sum over QPs lacks those that
// are closed meanwhile: they are no longer in the table of QPs, and their counters were added to
// those of closed QPs after these were read. The next sum has them again.
type highest struct {
	mu     sync.Mutex
	values map[string]uint64
}

// raise raises counters that are less than before.
func (h *highest) raise(all map[string]uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, v := range h.values {
		all[name] = max(all[name], v)
	}
	h.values = maps.Clone(all)
}

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

// ethLen is the length of an Ethernet header.
const ethLen = 14

// HWCounters implements verbs.Provider. No counter becomes less.
func (p *provider) HWCounters() (map[string]uint64, error) {
	all := p.roce.Snapshot()
	all["access_denied"] = p.access.Denied()
	all["link_downed"] = p.linkDowned.Load()
	for i := range p.nics {
		port, err := p.PortCounters(uint8(i + 1))
		if err != nil {
			return nil, err
		}
		for name, n := range port {
			all[name] += n
		}
		c := p.nics[i].Counters()
		all["sent_bytes"] += c.Sent.Bytes - ethLen*c.Sent.Packets
		all["rcvd_bytes"] += c.Received.Bytes - ethLen*c.Received.Packets
	}
	maps.Copy(all, p.cm.Counters.Snapshot())
	maps.Copy(all, p.iwarp.Snapshot())
	maps.Copy(all, p.raw.Snapshot())
	p.highest.raise(all)
	return all, nil
}
