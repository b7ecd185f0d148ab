package fabric

// Work returns the number of events that hosts have handled while others may run, and the sum of
// the most events of a worker between two stops.
func (f *Fabric) Work() (events, most uint64) { return f.work.events, f.work.most }
