package fabric

// Work returns the number of windows until now, that of their events, and the sum of the most
// events of a worker in each.
func (f *Fabric) Work() (windows, events, most uint64) {
	return f.work.windows, f.work.events, f.work.most
}
