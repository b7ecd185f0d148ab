package replicated

import (
	"encoding/binary"
	"fmt"
)

// Kind is the kind of a Message.
type Kind uint8

// The kinds of messages: a request, and its answer.
const (
	Vote Kind = iota + 1
	Voted
	Append
	Appended
)

// Entry is an entry of the log. Value 0 is that of the entry with which a leader begins its term.
type Entry struct{ Term, Value uint64 }

// Message is a message between two nodes.
type Message struct {
	Kind Kind
	From int
	Term uint64 // of the sender
	OK   bool   // answers: the vote is granted, the entries are in the log

	// Index and LogTerm are the place and the term of an entry. Vote: the candidate's last one.
	// Append: the one before Entries. Appended: the last one that agrees, or with OK false, perhaps
	// agrees.
	Index   int
	LogTerm uint64
	Commit  int // Append: the last entry that is committed
	Entries []Entry
}

// Lengths of encoded messages, in bytes.
const (
	headerLen  = 36
	entryLen   = 16
	maxEntries = 60
	maxMessage = headerLen + maxEntries*entryLen
)

// encode writes m to the beginning of b, and returns its length.
func (m *Message) encode(b []byte) int {
	b = append(b[:0], byte(m.Kind), byte(m.From), 0, byte(len(m.Entries)))
	if m.OK {
		b[2] = 1
	}
	b = binary.LittleEndian.AppendUint64(b, m.Term)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Index))
	b = binary.LittleEndian.AppendUint64(b, m.LogTerm)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.Commit))
	for _, e := range m.Entries {
		b = binary.LittleEndian.AppendUint64(b, e.Term)
		b = binary.LittleEndian.AppendUint64(b, e.Value)
	}
	return len(b)
}

// decode is the opposite of encode.
func decode(b []byte) (*Message, error) {
	if len(b) < headerLen || len(b) != headerLen+int(b[3])*entryLen {
		return nil, fmt.Errorf("a message of %d bytes", len(b))
	}
	word := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	m := &Message{Kind: Kind(b[0]), From: int(b[1]), OK: b[2] != 0,
		Term: word(4), Index: int(word(12)), LogTerm: word(20), Commit: int(word(28))}
	for at := headerLen; at < len(b); at += entryLen {
		m.Entries = append(m.Entries, Entry{word(at), word(at + 8)})
	}
	return m, nil
}
