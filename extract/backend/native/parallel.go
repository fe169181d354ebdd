package native

import (
	"sync"
	"sync/atomic"
)

// parallel calls fn(worker, i) for every i below n, on up to threads
// goroutines, and waits for them. Which worker gets which i is left open:
// results must not depend on it.
func parallel(threads, n int, fn func(worker, i int)) {
	threads = min(threads, n)
	if threads <= 1 {
		for i := range n {
			fn(0, i)
		}
		return
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range threads {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				fn(w, i)
			}
		})
	}
	wg.Wait()
}
