package link

// Queues is a link whose adapter has a queue for each flow, and sends from them in turn, as an RDMA
// adapter does with its QPs. A sender that stops while its queue is full leaves the others their
// turns, and notices that the peer has paused its class.
type Queues interface {
	// Queue returns the queue of the frames whose Ethernet, IP and UDP headers and BTH are headers,
	// of one sender at a time. It returns nil if there is none, or if it has a sender.
	//
	// ready is called once after Full has returned true, and not false since, when the queue is empty:
	// the last of its frames is then on the cable, or was dropped. The caller of ready holds no locks,
	// and ready may write frames.
	Queue(headers []byte, ready func()) Queue
}

// Queue is a queue of an adapter. Write adds frames to it also while it is full.
type Queue interface {
	// Full reports whether enough frames wait in the queue to keep the cable busy until ready.
	Full() bool
	// Close ends the sender's use of the queue: ready is not called any more. Frames in the queue are
	// sent.
	Close()
}
