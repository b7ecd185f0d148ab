package cm

import (
	"strings"
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/mad"
)

// kinds is the number of message types.
const kinds = int(mad.AttrAPR-mad.AttrREQ) + 1

// Counters count a manager's messages, as Linux does under /sys/class/infiniband_cm.
type Counters struct {
	Malformed atomic.Uint64 // not a CM datagram, or of an unsupported type
	Dropped   atomic.Uint64 // requests dropped for lack of room or of a GID
	Held      atomic.Uint64 // requests held for address validation
	tx, txRetries,
	rx, rxDuplicates [kinds]atomic.Uint64
}

func (c *Counters) count(of *[kinds]atomic.Uint64, a mad.Attr) {
	if i := int(a) - int(mad.AttrREQ); i >= 0 && i < kinds {
		of[i].Add(1)
	}
}

func (c *Counters) sent(a mad.Attr)      { c.count(&c.tx, a) }
func (c *Counters) resent(a mad.Attr)    { c.count(&c.txRetries, a) }
func (c *Counters) received(a mad.Attr)  { c.count(&c.rx, a) }
func (c *Counters) duplicate(a mad.Attr) { c.count(&c.rxDuplicates, a) }

// Snapshot returns the counters by name, such as cm_tx_msgs_req.
func (c *Counters) Snapshot() map[string]uint64 {
	s := map[string]uint64{"cm_rx_malformed": c.Malformed.Load(), "cm_rx_dropped": c.Dropped.Load(), "cm_rx_held": c.Held.Load()}
	for i := range kinds {
		name := strings.ToLower((mad.AttrREQ + mad.Attr(i)).String())
		s["cm_tx_msgs_"+name] = c.tx[i].Load()
		s["cm_tx_retries_"+name] = c.txRetries[i].Load()
		s["cm_rx_msgs_"+name] = c.rx[i].Load()
		s["cm_rx_duplicates_"+name] = c.rxDuplicates[i].Load()
	}
	return s
}
