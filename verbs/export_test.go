package verbs

// Add adds a completion like CQ.push, except that it does not set ready at the end.
func (cq *CQ) Add(wc *WC) { cq.add(wc, false) }

// Push adds a completion.
func (cq *CQ) Push(wc *WC) { cq.push(wc, false) }
