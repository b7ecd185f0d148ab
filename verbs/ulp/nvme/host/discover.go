package host

import (
	"context"
	"errors"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// maxRecords bounds the number of entries that Discover reads.
const maxRecords = 1 << 14

// Discover returns the subsystems that a target offers to this host. addr is that of a discovery
// service. Of cfg, which may be nil, NQN and the options of I/O queues are not used.
func Discover(ctx context.Context, dev *verbs.Device, addr string, cfg *Config) (entries []nvme.DiscoveryEntry, err error) {
	var full Config
	if cfg != nil {
		full = *cfg
	}
	full.NQN = nvme.DiscoveryNQN
	c, err := Dial(ctx, dev, addr, &full)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	const attempts = 8
	for range attempts {
		entries, stable, err := c.discoveryLog(ctx)
		if err != nil || stable {
			return entries, err
		}
	}
	return nil, verbs.Errorf(verbs.ErrAgain, "discover", "the discovery log has changed %d times while it was read", attempts)
}

// discoveryLog reads the discovery log page. It returns false if the page has changed meanwhile.
func (c *Controller) discoveryLog(ctx context.Context) (entries []nvme.DiscoveryEntry, stable bool, err error) {
	before, err := c.discoveryHeader(ctx)
	if err != nil {
		return nil, false, err
	}
	if before.Records > maxRecords {
		return nil, false, violation("the discovery log has %d entries: must be %d at most", before.Records, maxRecords)
	}
	b := make([]byte, nvme.DiscoveryEntryLen)
	for i := range before.Records {
		if err := c.LogPage(ctx, nvme.LogDiscovery, nvme.DiscoveryHeaderLen+i*nvme.DiscoveryEntryLen, true, b); err != nil {
			return nil, false, err
		}
		e, err := nvme.ParseDiscoveryEntry(b)
		if err != nil {
			return nil, false, err
		}
		entries = append(entries, e)
	}
	after, err := c.discoveryHeader(ctx)
	return entries, after == before, err
}

func (c *Controller) discoveryHeader(ctx context.Context) (h nvme.DiscoveryHeader, err error) {
	b := make([]byte, nvme.DiscoveryHeaderLen)
	if err := c.LogPage(ctx, nvme.LogDiscovery, 0, true, b); err != nil {
		return h, err
	}
	return nvme.ParseDiscoveryHeader(b)
}
