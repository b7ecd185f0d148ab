package target

import (
	"cmp"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
)

// Config has the options of a target. NQN and Namespaces have no default.
type Config struct {
	// NQN is the name of the subsystem.
	NQN string
	// Namespaces are the block devices. Their NSIDs are 1, 2, ….
	Namespaces []Namespace
	// Hosts are the NQNs of the hosts that may connect. If there is none here or in Keys, all may.
	Hosts []string
	// Keys has the keys of hosts that must authenticate themselves, by their NQNs. These hosts may
	// connect. They need no authentication for the discovery service.
	Keys map[string]HostKeys
	// Hashes and Groups are what authentication may use, in the order of preference; nil means all.
	Hashes []auth.Hash
	Groups []auth.Group

	// Transports are the wire protocols; none means RoCEv2 and iWARP.
	Transports []verbs.Transport
	// Serial and Model are shown by hosts. The default of Serial is made from NQN, and that of Model
	// is "SoftRNIC".
	Serial, Model string
	// QueueDepth is the number of commands that a host may have outstanding on a queue, 16 to 1024;
	// 0 means 128.
	QueueDepth int
	// IOQueues is the number of I/O queues that a controller may have, 1 to 1024; 0 means 64.
	IOQueues int
	// Connections is the number of queues of all hosts, 1 to 65535; 0 means 256. Each occupies about
	// 8 KiB for each command of its depth, and may block a thread while it writes to a File. The hosts
	// at one address have at most half of what the others leave. Beyond, the oldest of their queues
	// with the discovery service, before Connect or before authentication ends for a new one. When all
	// are in use, and more than half of them by such queues, the oldest of the address with most of
	// these ends.
	Connections int
	// Memory is the size of the pool that data of commands passes through, in bytes, at least 1 MiB;
	// 0 means 64 MiB. The hosts at one address have at most half of what the others leave. It is
	// allocated as needed, in pieces of 1 MiB. Pages of backends of type *Memory that commands use at
	// a time may have as much memory again. Each *Memory keeps the pages that it has allocated for
	// this.
	Memory int
	// ConnectTimeout is the time within which a new connection sends its Connect command; 0 means 5
	// seconds.
	ConnectTimeout time.Duration
	// AuthTimeout is the time within which a host authenticates itself on a new queue; 0 means a
	// minute.
	AuthTimeout time.Duration
	// Logger gets connections and their ends at level Info and what is wrong with them at Warn; nil
	// means none.
	Logger *slog.Logger
}

// HostKeys are the keys for the authentication of a host.
type HostKeys struct {
	Host *auth.Key
	// Controller is the key with which the target authenticates itself if the host asks for it; nil:
	// it cannot.
	Controller *auth.Key
}

// Namespace is a block device.
type Namespace struct {
	Backend Backend
	// BlockSize is the size of logical blocks, a power of two from 512 to 4096 bytes; 0 means 512.
	BlockSize int
	// ReadOnly makes the namespace write protected.
	ReadOnly bool
	// UUID identifies the namespace. The default is made from the NQN and the NSID, so that a host
	// recognises the namespace of a target that was started again.
	UUID [16]byte
}

const (
	minDepth     = 16
	maxDepth     = 1024
	maxQueues    = 1024
	maxBlockSize = 4096
)

// check returns the effective options, or an error that names the field whose value is out of
// bounds.
func (cfg *Config) check() (*Config, error) {
	const op = "configure NVMe target"
	var c Config
	if cfg != nil {
		c = *cfg
	}
	c.QueueDepth, c.IOQueues, c.Connections = cmp.Or(c.QueueDepth, 128), cmp.Or(c.IOQueues, 64), cmp.Or(c.Connections, 256)
	c.Memory, c.ConnectTimeout = cmp.Or(c.Memory, 64<<20), cmp.Or(c.ConnectTimeout, 5*time.Second)
	c.Model = cmp.Or(c.Model, "SoftRNIC")
	c.AuthTimeout = cmp.Or(c.AuthTimeout, time.Minute)
	if c.Hashes == nil {
		c.Hashes = auth.Hashes()
	}
	if c.Groups == nil {
		c.Groups = auth.Groups()
	}
	if len(c.Transports) == 0 {
		c.Transports = []verbs.Transport{verbs.RoCEv2, verbs.IWARP}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	for _, f := range []struct {
		name              string
		value, least, max int
	}{
		{"QueueDepth", c.QueueDepth, minDepth, maxDepth}, {"IOQueues", c.IOQueues, 1, maxQueues},
		{"Connections", c.Connections, 1, 1<<16 - 1}, {"Memory", c.Memory, slabSize, math.MaxInt},
		{"len(Namespaces)", len(c.Namespaces), 1, 1024}, {"len(Serial)", len(c.Serial), 0, 20}, {"len(Model)", len(c.Model), 0, 40},
	} {
		if f.value < f.least || f.value > f.max {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "%s %d: must be %d to %d", f.name, f.value, f.least, f.max)
		}
	}
	if c.ConnectTimeout < 0 || c.AuthTimeout < 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "ConnectTimeout %v, AuthTimeout %v: must be 0 or more", c.ConnectTimeout, c.AuthTimeout)
	}
	if err := auth.Check(c.Hashes, c.Groups); err != nil {
		return nil, err
	}
	for nqn, keys := range c.Keys {
		if keys.Host == nil {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "Keys of %s have no Host", nqn)
		}
	}
	for _, nqn := range slices.Concat([]string{c.NQN}, c.Hosts, slices.Collect(maps.Keys(c.Keys))) {
		if err := nvme.CheckNQN(nqn); err != nil {
			return nil, err
		}
	}
	if c.NQN == nvme.DiscoveryNQN {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "NQN %s: is that of the discovery service", c.NQN)
	}
	for i, ns := range c.Namespaces {
		size := cmp.Or(ns.BlockSize, 512)
		switch {
		case ns.Backend == nil:
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "namespace %d has no Backend", i+1)
		case size < 512 || size > maxBlockSize || size&(size-1) != 0:
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "namespace %d: BlockSize %d: must be a power of two from 512 to %d", i+1, size,
				maxBlockSize)
		}
	}
	return &c, nil
}
