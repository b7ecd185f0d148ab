package verbs

// Add adds a completion as CQ.push does, up to the moment when push has unlocked the CQ and not yet
// set ready.
func (cq *CQ) Add(wc *WC) { cq.add(wc, false) }

// Push adds a completion.
func (cq *CQ) Push(wc *WC) { cq.push(wc, false) }
