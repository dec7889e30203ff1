"""Programs that people run, with their recurrent layers as published and by rnnkern."""
