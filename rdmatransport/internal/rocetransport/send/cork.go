package send

import "math"

// cork holds the requests posted since the last Uncork. While they do not fill a frame and packets
// are in flight, they may wait for more requests to share a frame.
type cork struct {
	requests uint32
	bytes    uint32 // payload bytes, saturated
}

// posted counts a request as one packet. A message of several packets has too many bytes to fit.
func (c *cork) posted(bytes uint64) {
	c.requests++
	c.bytes = uint32(min(uint64(c.bytes)+bytes, math.MaxUint32))
}

func (c *cork) reset() { *c = cork{} }

func (c *cork) empty() bool { return c.requests == 0 }

// fits reports whether the corked requests take less than a frame of batch full packets.
func (c *cork) fits(batch, mtu uint32) bool {
	return batch > 1 && c.requests < fullFrame && c.bytes < (batch-1)*mtu
}
