package cm

import (
	"net/netip"

	"github.com/softrnic/softrnic/stack"
)

// pathKey says which datagrams can share a path.
type pathKey struct {
	port         uint8
	src, dst     netip.Addr
	trafficClass uint8
	priority     uint8
}

// sharedPath is a way to a peer, used by every connection to it.
type sharedPath struct {
	Path
	key  pathKey
	refs int
}

// path is the way for a key, with a reference for the caller.
func (m *Manager) path(k pathKey) (*sharedPath, error) {
	p := m.paths[k]
	if p == nil {
		w, err := m.cfg.GSI.Path(k.port, stack.PathAttr{
			Src: k.src, Dst: k.dst, TrafficClass: k.trafficClass, Priority: k.priority, HopLimit: hopLimit,
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

// replyPath is the way back for a datagram. It is kept for a while, as a datagram waits in it for the neighbour's MAC.
func (m *Manager) replyPath(d *Datagram) (*sharedPath, error) {
	k := pathKey{d.Port, d.Dst, d.Src, d.TrafficClass, d.Priority}
	if p := m.paths[k]; p != nil {
		return p, nil
	}
	p, err := m.path(k)
	if err != nil {
		return nil, err
	}
	if old := m.replies[m.nextReply]; old != nil {
		m.putPath(old)
	}
	m.replies[m.nextReply] = p
	m.nextReply = (m.nextReply + 1) % replyPaths
	return p, nil
}
