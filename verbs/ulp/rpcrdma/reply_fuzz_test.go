package rpcrdma

import (
	"bytes"
	"testing"
)

// FuzzReply: a server sends an arbitrary message while a call with a Write chunk, or with a Reply
// chunk, is outstanding. The reply has no bytes but those of the message and of the chunk, whose
// memory the server may write.
func FuzzReply(f *testing.F) {
	const room = 256
	read := make([]byte, 40) // a call of NFS's READ
	copy(read, "\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x01\x86\xa3\x00\x00\x00\x03\x00\x00\x00\x06")
	f.Add((&Header{XID: 1, Version: 1, Credits: 1, Type: NoMsg, Reply: []Segment{{1, 100, 0}}}).Append(nil), []byte("reply"), false)
	result := make([]byte, 128) // accepted, OK, no attributes, 8 bytes
	result[7], result[35], result[43] = 1, 8, 8
	f.Add(append((&Header{XID: 1, Version: 1, Credits: 1, Type: Msg, Write: [][]Segment{{{1, 8, 0}}}}).Append(nil), result[:44]...),
		[]byte("contents"), true)
	f.Add((&Header{XID: 1, Version: 1, Credits: 1, Type: Error, Err: ErrVers, Low: 2, High: 3}).Append(nil), []byte{}, true)
	f.Fuzz(func(t *testing.T, message, memory []byte, write bool) {
		h, n, err := ParseHeader(message)
		if err != nil {
			return
		}
		p, r := &pending{message: read}, &region{b: make([]byte, room)}
		copy(r.b, memory)
		before := bytes.Clone(message)
		if p.reply = r; write {
			p.write, p.reply = r, nil
		}
		reply, err := p.receive(NFS, h, message[n:])
		if len(reply) > len(message)+room+3 || err != nil && reply != nil {
			t.Errorf("%d bytes of a message of %d, error %v", len(reply), len(message), err)
		}
		if !bytes.Equal(message, before) {
			t.Error("the message has changed")
		}
		reply = append(reply, 0) // not the memory of the chunk
		clear(reply)
		if want := append(bytes.Clone(memory), make([]byte, room)...)[:room]; !bytes.Equal(r.b, want) {
			t.Error("the reply is in memory that the server may write")
		}
	})
}

// FuzzPrivate: limits of arbitrary private data are those that RFC 8797 can express, and what a
// peer encodes is what another decodes.
func FuzzPrivate(f *testing.F) {
	f.Add((&private{invalidate: true, send: 4096, recv: 8192}).bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		p := parsePrivate(b)
		if p.send < sizeUnit || p.send > 256*sizeUnit || p.recv < sizeUnit || p.recv > 256*sizeUnit {
			t.Errorf("sizes %d and %d", p.send, p.recv)
		}
		if again := parsePrivate(p.bytes()); again != p {
			t.Errorf("%+v becomes %+v", p, again)
		}
	})
}
