package cm

import (
	"net/netip"
	"slices"

	"github.com/softrnic/softrnic/stack"
)

// pathKey identifies datagrams that can share a path.
type pathKey struct {
	port         uint8
	src, dst     netip.Addr
	trafficClass uint8
	priority     uint8
	via          [6]byte // for replies to datagrams without a connection
}

// sharedPath is a path to a peer, shared by all connections to it.
type sharedPath struct {
	Path
	key  pathKey
	refs int
}

// path returns the path for a key, with a reference for the caller.
func (m *Manager) path(k pathKey) (*sharedPath, error) {
	p := m.paths[k]
	if p == nil {
		w, err := m.cfg.GSI.Path(k.port, stack.PathAttr{
			Src: k.src, Dst: k.dst, TrafficClass: k.trafficClass, Priority: k.priority, HopLimit: hopLimit, Via: k.via,
		})
		if err != nil {
			return nil, err
		}
		p = &sharedPath{Path: w, key: k}
		m.paths[k] = p
	}
	p.refs++
	return p, nil
}

func (m *Manager) putPath(p *sharedPath) {
	if p.refs--; p.refs == 0 {
		delete(m.paths, p.key)
		p.Close()
	}
}

// replyPath returns the path for a reply to a datagram, with a reference for the caller. If the
// datagram's MAC address is unknown, the path is kept for a while, because the reply waits for
// neighbour resolution. If it is known, no neighbour is resolved, because a flood could name any
// number of them.
func (m *Manager) replyPath(d *Datagram) (*sharedPath, error) {
	k := pathKey{d.Port, d.Dst, d.Src, d.TrafficClass, d.Priority, [6]byte{}}
	if p := m.paths[k]; p != nil {
		p.refs++
		return p, nil
	}
	k.via = d.Via
	p, err := m.path(k)
	if err != nil || d.Via != ([6]byte{}) {
		return p, err
	}
	p.refs++
	m.keepPath(p)
	return p, nil
}

// keepPath takes over a reference and keeps the path for a while. Its last datagram may wait for
// neighbour resolution.
func (m *Manager) keepPath(p *sharedPath) {
	if slices.Contains(m.replies[:], p) {
		m.putPath(p)
		return
	}
	if old := m.replies[m.nextReply]; old != nil {
		m.putPath(old)
	}
	m.replies[m.nextReply] = p
	m.nextReply = (m.nextReply + 1) % replyPaths
}
