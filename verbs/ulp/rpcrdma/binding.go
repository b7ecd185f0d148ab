package rpcrdma

// Item is a data item of an RPC message that may move in a chunk of its own: a DDP-eligible data
// item (RFC 8166 §3.4.1).
type Item struct {
	Offset int // of the data, after its length, in the message
	Length int // bytes of data, without XDR's padding
}

// end returns the offset after the item and its padding, within a message of n bytes.
func (i Item) end(n int) int { return min(i.Offset+i.Length+pad(i.Length), n) }

// pad returns the number of bytes of XDR padding after n bytes (RFC 4506 §4.9).
func pad(n int) int { return -n & 3 }

// Binding is the upper-layer binding of an RPC program (RFC 8166 §6). Its methods get messages from
// the network: they may be invalid, in which case there are no items.
type Binding interface {
	// CallItems returns the data items of a call, in order.
	CallItems(call []byte) []Item
	// ReplyItems returns the data items of a reply to a call, in order. An item may be empty.
	ReplyItems(call, reply []byte) []Item
	// ReplySize returns the largest length of the data item of the reply to a call, or 0 if the
	// reply has none, and the largest length of the rest of the reply. Only clients use it.
	ReplySize(call []byte) (item, rest int)
}
