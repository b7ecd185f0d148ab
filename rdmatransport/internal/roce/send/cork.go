package send

import "math"

// cork is the requests that were posted since Uncork was last called. While they do not fill a
// frame, and something is in flight, they may wait for more requests to share a frame with.
type cork struct {
	requests uint32
	bytes    uint32 // of their payload, or the most that fits here
}

// posted counts a request, as one packet: a message of more packets has so many bytes that it does
// not fit in any case.
func (c *cork) posted(bytes uint64) {
	c.requests++
	c.bytes = uint32(min(uint64(c.bytes)+bytes, math.MaxUint32))
}

func (c *cork) reset() { *c = cork{} }

func (c *cork) empty() bool { return c.requests == 0 }

// fits reports whether all of it has room in less than a frame of so many full packets.
func (c *cork) fits(batch, mtu uint32) bool {
	return batch > 1 && c.requests < fullFrame && c.bytes < (batch-1)*mtu
}
