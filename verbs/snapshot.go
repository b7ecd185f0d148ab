package verbs

// Snapshot has the counters and objects of a device at one time, for monitoring. It is encoded by
// encoding/json.
type Snapshot struct {
	Device   string            `json:"device"`
	FWVer    string            `json:"fwVer"`
	Ports    []PortSnapshot    `json:"ports"`    // in the order of their numbers, from 1
	Counters map[string]uint64 `json:"counters"` // HWCounters
	// Of existing and closed QPs: see MeasureLatency.
	Latencies map[Transport]Latency `json:"latencies"`
	Resources Resources             `json:"resources"`
	QPKinds   []QPKind              `json:"qpKinds"`
}

// PortSnapshot is a port of a Snapshot.
type PortSnapshot struct {
	Attr     PortAttr          `json:"attr"`
	Counters map[string]uint64 `json:"counters"` // PortCounters
}

// QPKind is the number of QPs with the same wire protocol, type and state.
type QPKind struct {
	Transport Transport `json:"transport"`
	Type      QPType    `json:"type"`
	State     QPState   `json:"state"`
	Count     int       `json:"count"`
}

// Snapshot takes a snapshot of the device. It locks each QP for a moment. A closed device has
// neither counters nor ports.
func (d *Device) Snapshot() Snapshot {
	s := Snapshot{Device: d.Name(), FWVer: d.QueryDevice().FWVer, Latencies: d.sumLatencies(), Resources: d.Resources()}
	s.Counters, _ = d.HWCounters() // none if the device is closed
	for port := uint8(1); port <= d.QueryDevice().PhysPortCnt; port++ {
		attr, err := d.queryPort(port)
		if err != nil {
			continue // the device is closed
		}
		counters, err := d.PortCounters(port)
		if err != nil {
			continue
		}
		s.Ports = append(s.Ports, PortSnapshot{attr, counters})
	}
	kinds := make(map[QPKind]int)
	for _, qp := range d.QPs() {
		kinds[QPKind{Transport: qp.Transport(), Type: qp.Type(), State: qp.State()}]++
	}
	for k, n := range kinds {
		k.Count = n
		s.QPKinds = append(s.QPKinds, k)
	}
	return s
}
