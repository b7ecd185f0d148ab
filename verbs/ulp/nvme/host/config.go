package host

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
)

// Config has the options of a host. NQN has no default, except in Discover.
type Config struct {
	// NQN is the name of the subsystem.
	NQN string
	// HostNQN and HostID identify this host. The default of HostNQN is made from the name of the
	// machine, or of the device in the time of a simulation. That of HostID is random.
	HostNQN string
	HostID  [16]byte

	// Transport is the wire protocol.
	Transport verbs.Transport
	// LocalAddr is the local address. If it is not valid, the route to the target determines it.
	LocalAddr netip.AddrPort

	// IOQueues is the number of I/O queues that namespaces share, 1 to 128; 0 means 4. The target may
	// allow less.
	IOQueues int
	// QueueDepth is the number of commands that may be outstanding on an I/O queue, 1 to 1023; 0 means
	// 127. The target may allow less. A further command waits.
	QueueDepth int
	// Memory is the size of the pool for data, in bytes, at least 1 MiB; 0 means 16 MiB. It is
	// allocated as needed, in pieces of 1 MiB. I/O queues have 8 KiB for each command besides.
	Memory int
	// Windows protects the application's memory by memory windows: see the package's description. It
	// costs a work request for each command.
	Windows bool

	// KeepAlive is the time after which the target ends a controller that it hears nothing from. A
	// Keep Alive command is sent three times as often. 0 means 15 seconds.
	KeepAlive time.Duration
	// Timeout is the time within which a command is completed; 0 means 30 seconds. That it has passed
	// is noticed up to a fifth later.
	Timeout time.Duration
	// Logger gets connections and their ends at level Info; nil means none.
	Logger *slog.Logger

	// Key is the host's key, for targets that require authentication (DH-HMAC-CHAP); nil: such a
	// target is an error.
	Key *auth.Key
	// ControllerKey is the key with which the target must authenticate itself; nil: it need not. With
	// it, Key is required, and a target that requires no authentication is an error. The discovery
	// service needs none.
	ControllerKey *auth.Key
	// Hashes and Groups are what authentication may use; nil means all.
	Hashes []auth.Hash
	Groups []auth.Group
}

const (
	maxQueues    = 128
	maxDepth     = 1023
	minKeepAlive = time.Second
)

// check returns the effective options, or an error that names the field whose value is out of
// bounds.
func (cfg *Config) check(dev *verbs.Device) (*Config, error) {
	const op = "configure NVMe host"
	var c Config
	if cfg != nil {
		c = *cfg
	}
	c.IOQueues, c.QueueDepth, c.Memory = cmp.Or(c.IOQueues, 4), cmp.Or(c.QueueDepth, 127), cmp.Or(c.Memory, 16<<20)
	c.KeepAlive, c.Timeout = cmp.Or(c.KeepAlive, 15*time.Second), cmp.Or(c.Timeout, 30*time.Second)
	c.HostNQN = cmp.Or(c.HostNQN, defaultHostNQN(dev))
	if c.HostID == [16]byte{} {
		c.HostID = newHostID(dev.Clock())
	}
	if c.Hashes == nil {
		c.Hashes = auth.Hashes()
	}
	if c.Groups == nil {
		c.Groups = auth.Groups()
	}
	if err := auth.Check(c.Hashes, c.Groups); err != nil {
		return nil, err
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, f := range []struct {
		name              string
		value, least, max int
	}{
		{"IOQueues", c.IOQueues, 1, maxQueues}, {"QueueDepth", c.QueueDepth, 1, maxDepth}, {"Memory", c.Memory, slabSize, math.MaxInt},
	} {
		if f.value < f.least || f.value > f.max {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "%s %d: must be %d to %d", f.name, f.value, f.least, f.max)
		}
	}
	switch {
	case c.KeepAlive < minKeepAlive || c.KeepAlive/time.Millisecond > math.MaxUint32:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "KeepAlive %v: must be %v to %v", c.KeepAlive, minKeepAlive,
			math.MaxUint32*time.Millisecond)
	case c.ControllerKey != nil && c.Key == nil:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "ControllerKey without Key: a target authenticates itself only to a host that does so")
	case c.Timeout < ticks*time.Millisecond:
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "Timeout %v: must be %v at least", c.Timeout, ticks*time.Millisecond)
	}
	for _, nqn := range []string{c.NQN, c.HostNQN} {
		if err := nvme.CheckNQN(nqn); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

// newHostID returns a random ID. In the time of a simulation its seed determines the ID.
func newHostID(c verbs.Clock) (id [16]byte) {
	if c.Virtual() {
		for i := 0; i < len(id); i += 4 {
			binary.LittleEndian.PutUint32(id[i:], c.Uint32())
		}
	} else {
		_, _ = rand.Read(id[:]) // never fails
	}
	id[6] = id[6]&0xf | 0x40 // version 4 (RFC 9562 §5.4)
	id[8] = id[8]&0x3f | 0x80
	return id
}

// defaultHostNQN returns a name made from that of the machine, or in the time of a simulation from
// that of the device.
func defaultHostNQN(dev *verbs.Device) string {
	name, err := os.Hostname()
	if err != nil {
		name = "unknown"
	}
	if dev.Clock().Virtual() {
		name = dev.Name()
	}
	name = strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '-'
		}
		return r
	}, name)
	return "nqn.2014-08.org.softrnic:" + name[:min(len(name), 128)]
}
