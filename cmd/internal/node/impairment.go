package node

import (
	"sync"

	"github.com/softrnic/softrnic/link/impair"
)

// Impairment is the impairment of a node's link, which may change while the node runs.
type Impairment struct {
	link *impair.Link

	mu   sync.Mutex
	spec string
}

// Set replaces the impairment by one in the syntax of [impair.Parse].
func (i *Impairment) Set(spec string) error {
	cfg, err := impair.Parse(spec)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.link.Set(&cfg); err != nil {
		return err
	}
	i.spec = spec
	return nil
}

// Spec returns the current impairment, as text.
func (i *Impairment) Spec() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.spec
}

// Counters returns the link's counters of received and of sent packets.
func (i *Impairment) Counters() (in, out impair.Counters) { return i.link.Counters() }
