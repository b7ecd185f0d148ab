// Package replicated is an example of a service that tests itself on a simulated network: a log
// that five nodes replicate over RDMA, by Raft (Ongaro and Ousterhout, In Search of an
// Understandable Consensus Algorithm, 2014). Its test has 200 runs with failures of the network, in
// virtual time.
//
// Node has the algorithm, and knows neither RDMA nor time. Host has its device, connections and
// timers. Nodes keep their log in memory, so they must not be restarted. They trust each other's
// messages.
package replicated

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"
)

// Timers of a node.
const (
	beat       = 300 * time.Microsecond // between two messages of a leader
	leastQuiet = time.Millisecond       // without a leader, until an election
	mostQuiet  = 2 * time.Millisecond
)

type role uint8

const (
	follower role = iota
	candidate
	leader
)

const nobody = -1

// Node is a node of the log.
type Node struct {
	id, nodes int
	random    *rand.Rand
	send      func(to int, m *Message)
	committed func(index int, value uint64) // called once for each index, in order

	// votesBlindly is a fault that the test plants: the node votes for candidates that lack entries
	// which are in its own log.
	votesBlindly bool

	role     role
	term     uint64
	votedFor int
	votes    uint64        // of a candidate: a bit for each node
	log      []Entry       // from index 1 on
	commit   int           // the last committed entry
	due      time.Duration // the next election, or of a leader, the next message to all

	match []int // of a leader: the last entry that a node surely has
	next  []int // of a leader: the entry to be sent next
}

// NewNode returns a node of several. Its first election is due later.
func NewNode(id, nodes int, random *rand.Rand, send func(to int, m *Message), committed func(index int, value uint64)) *Node {
	n := &Node{id: id, nodes: nodes, random: random, send: send, committed: committed, votedFor: nobody, log: make([]Entry, 1)}
	n.quiet(0)
	return n
}

// Due returns the time at which Tick is to be called.
func (n *Node) Due() time.Duration { return n.due }

// Tick does what is due: a leader sends to all, others begin an election.
func (n *Node) Tick(now time.Duration) {
	if n.role == leader {
		n.appendToAll(now)
		return
	}
	n.role, n.votedFor, n.votes = candidate, n.id, 1<<n.id
	n.term++
	n.quiet(now)
	last := len(n.log) - 1
	for to := range n.nodes {
		n.tell(to, &Message{Kind: Vote, Index: last, LogTerm: n.log[last].Term})
	}
}

// Propose appends a value to the log, if the node is the leader as far as it knows.
func (n *Node) Propose(now time.Duration, value uint64) bool {
	if n.role != leader {
		return false
	}
	n.log = append(n.log, Entry{n.term, value})
	n.appendToAll(now)
	return true
}

// Receive handles a message of another node.
func (n *Node) Receive(now time.Duration, m *Message) {
	if m.Term > n.term {
		n.role, n.term, n.votedFor = follower, m.Term, nobody
		n.quiet(now)
	}
	switch m.Kind {
	case Vote:
		ok := m.Term == n.term && (n.votedFor == nobody || n.votedFor == m.From) && (n.votesBlindly || n.hasAll(m))
		if ok {
			n.votedFor = m.From
			n.quiet(now)
		}
		n.tell(m.From, &Message{Kind: Voted, OK: ok})
	case Voted:
		if n.role == candidate && m.Term == n.term && m.OK {
			n.votes |= 1 << m.From
			if bits.OnesCount64(n.votes) > n.nodes/2 {
				n.lead(now)
			}
		}
	case Append:
		if m.Term == n.term {
			n.role = follower
			n.quiet(now)
			n.store(m)
		} // else: a leader of the past
	case Appended:
		if n.role == leader && m.Term == n.term {
			n.onAppended(m)
		}
	}
}

// hasAll reports whether a candidate's log is at least as far as the node's own.
func (n *Node) hasAll(m *Message) bool {
	last := len(n.log) - 1
	return m.LogTerm > n.log[last].Term || m.LogTerm == n.log[last].Term && m.Index >= last
}

// lead begins the node's term as the leader. An entry of its own term lets it commit earlier ones.
func (n *Node) lead(now time.Duration) {
	n.role = leader
	n.match = make([]int, n.nodes)
	n.next = slices.Repeat([]int{len(n.log)}, n.nodes)
	n.Propose(now, 0)
}

func (n *Node) appendToAll(now time.Duration) {
	n.due = now + beat
	for to := range n.nodes {
		n.appendTo(to)
	}
}

// appendTo sends a node the entries that it may lack.
func (n *Node) appendTo(to int) {
	if to == n.id {
		return
	}
	from := n.next[to]
	entries := slices.Clone(n.log[from:min(len(n.log), from+maxEntries)]) // it may wait, and the log change
	n.next[to] += len(entries)                                            // if they are lost, the node will say so
	n.tell(to, &Message{Kind: Append, Index: from - 1, LogTerm: n.log[from-1].Term, Commit: n.commit, Entries: entries})
}

// store puts a leader's entries into the log. An entry of another term, and all after it, were
// those of a leader that could not commit them.
func (n *Node) store(m *Message) {
	if last := len(n.log) - 1; m.Index > last || n.log[m.Index].Term != m.LogTerm {
		n.tell(m.From, &Message{Kind: Appended, Index: min(m.Index-1, last)})
		return
	}
	for i, e := range m.Entries {
		at := m.Index + 1 + i
		if at < len(n.log) && n.log[at].Term != e.Term {
			n.log = n.log[:at]
		}
		if at == len(n.log) {
			n.log = append(n.log, e)
		}
	}
	last := m.Index + len(m.Entries)
	n.commitTo(min(m.Commit, last))
	n.tell(m.From, &Message{Kind: Appended, OK: true, Index: last})
}

func (n *Node) onAppended(m *Message) {
	if !m.OK {
		n.next[m.From] = max(n.match[m.From], m.Index) + 1
		n.appendTo(m.From)
		return
	}
	n.match[m.From] = max(n.match[m.From], m.Index)
	n.next[m.From] = max(n.next[m.From], m.Index+1)
	n.match[n.id] = len(n.log) - 1
	sorted := slices.Sorted(slices.Values(n.match))
	// Most nodes have this entry. Entries of earlier terms are committed only with one of this term.
	if most := sorted[(n.nodes-1)/2]; n.log[most].Term == n.term {
		n.commitTo(most)
	}
}

func (n *Node) commitTo(index int) {
	for n.commit < index {
		n.commit++
		n.committed(n.commit, n.log[n.commit].Value)
	}
}

// quiet puts off the next election.
func (n *Node) quiet(now time.Duration) {
	n.due = now + leastQuiet + time.Duration(n.random.Int64N(int64(mostQuiet-leastQuiet)))
}

// tell sends a message to another node.
func (n *Node) tell(to int, m *Message) {
	if to != n.id {
		m.From, m.Term = n.id, n.term
		n.send(to, m)
	}
}
